"""Tests of `cdcworker.connectors.postgres.doctor` on real servers and processes."""
