"""Tests of `cdcworker.worker.quickstart` on real servers and processes."""
