"""Tests of `cdcworker.connectors.file` on real servers and processes."""
