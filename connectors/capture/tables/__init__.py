"""What is remembered of captured tables? Their shapes and keys, those that are held back, and those that are emptied first."""
