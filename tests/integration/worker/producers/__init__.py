"""Tests of `cdcworker.worker.producers` on real servers and processes."""
