"""Tests of `cdcworker.connectors` on real servers and processes."""
