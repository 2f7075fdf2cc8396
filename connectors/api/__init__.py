"""What does a source, a sink or a warehouse implement? Protocols; nobody needs to inherit, and abilities are asked by isinstance."""
