"""Tests of `cdcworker.worker.processes` on real servers and processes."""
