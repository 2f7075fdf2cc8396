"""Unit tests of `cdcworker.connectors.config`."""
