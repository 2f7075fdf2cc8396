"""Unit tests of `cdcworker.connectors.postgres.decode`."""
