"""Unit tests of `cdcworker.connectors.postgres.server`."""
