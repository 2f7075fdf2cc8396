"""Tests of `cdcworker.connectors.postgres.source` on real servers and processes."""
