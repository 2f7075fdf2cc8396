"""Tests of `cdcworker.worker.rest` on real servers and processes."""
