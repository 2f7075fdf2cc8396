"""Tests of `cdcworker.worker.offsets` on real servers and processes."""
