"""The benchmark of many connectors."""
