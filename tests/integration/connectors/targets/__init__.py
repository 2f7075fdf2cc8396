"""Tests of `cdcworker.connectors.targets` on real servers and processes."""
