"""Tests of `cdcworker.connectors.postgres.server` on real servers and processes."""
