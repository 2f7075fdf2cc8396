"""Unit tests of `cdcworker.connectors.api`."""
