"""What is compared with what? A source and a sink opened for `connectors.verify`: their tables, columns and keys."""
