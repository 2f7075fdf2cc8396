"""Tests of `cdcworker.connectors.postgres.types` on real servers and processes."""
