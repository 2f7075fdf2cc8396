"""Is a config right? Its checks by definition, and live ones against the servers that it names."""
