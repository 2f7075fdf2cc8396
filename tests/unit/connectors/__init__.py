"""Unit tests of `cdcworker.connectors`."""
