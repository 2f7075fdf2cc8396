"""Unit tests of `cdcworker.connectors.comparison`."""
