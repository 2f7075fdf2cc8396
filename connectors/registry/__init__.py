"""Which connectors does this worker know? Those that ship with it, and those of allowed distributions."""
