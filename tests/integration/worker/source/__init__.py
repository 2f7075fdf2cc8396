"""Tests of `cdcworker.worker.source` on real servers and processes."""
