"""How are rows read beside any stream? Loads, chunks and their windows, the scheduler and its readers."""
