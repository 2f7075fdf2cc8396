"""Unit tests of `cdcworker.connectors.file`."""
