"""Tests of `cdcworker.connectors.postgres.decode` on real servers and processes."""
