"""How does a source task deliver exactly once? The engine around every `SourceTask`."""
