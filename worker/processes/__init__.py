"""The worker's side of its task processes: it starts them, reads their output, watches their limits and ends them."""
