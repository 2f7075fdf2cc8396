"""The benchmark of the sinks."""
