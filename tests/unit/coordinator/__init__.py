"""The herd core and its parts, without I/O."""
