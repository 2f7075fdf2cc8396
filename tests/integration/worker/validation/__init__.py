"""Tests of `cdcworker.worker.validation` on real servers and processes."""
