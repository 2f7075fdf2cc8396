"""Tests of `cdcworker.connectors.spark` on real servers and processes."""
