"""Tests of `cdcworker.worker.server` on real servers and processes."""
