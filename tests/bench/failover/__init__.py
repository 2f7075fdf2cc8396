"""The benchmark of failovers."""
