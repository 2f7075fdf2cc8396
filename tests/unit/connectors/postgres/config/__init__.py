"""Unit tests of `cdcworker.connectors.postgres.config`."""
