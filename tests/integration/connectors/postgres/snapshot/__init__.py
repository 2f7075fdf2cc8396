"""Tests of `cdcworker.connectors.postgres.snapshot` on real servers and processes."""
