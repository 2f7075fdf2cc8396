"""Tests of `cdcworker.connectors.postgres` on real servers and processes."""
