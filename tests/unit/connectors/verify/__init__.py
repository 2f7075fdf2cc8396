"""Unit tests of `cdcworker.connectors.verify`."""
