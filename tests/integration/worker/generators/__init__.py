"""Tests of `cdcworker.worker.generators` on real servers and processes."""
