"""Tests of `cdcworker.connectors.verify` on real servers and processes."""
