"""Unit tests of `cdcworker.connectors.postgres.transport`."""
