"""Unit tests of `cdcworker.connectors.postgres.source`."""
