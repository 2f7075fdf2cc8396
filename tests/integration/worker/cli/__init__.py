"""Tests of `cdcworker.worker.cli` on real servers and processes."""
