"""Tests of `cdcworker.connectors.postgres.config` on real servers and processes."""
