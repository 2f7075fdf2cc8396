"""Tests of `cdcworker.connectors.transactions` on real servers and processes."""
