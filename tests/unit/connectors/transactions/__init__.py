"""Unit tests of `cdcworker.connectors.transactions`."""
