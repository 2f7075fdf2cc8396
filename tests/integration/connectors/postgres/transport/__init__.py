"""Tests of `cdcworker.connectors.postgres.transport` on real servers and processes."""
