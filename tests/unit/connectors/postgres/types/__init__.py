"""Unit tests of `cdcworker.connectors.postgres.types`."""
