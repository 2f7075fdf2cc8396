"""Unit tests of `cdcworker.connectors.postgres.snapshot`."""
