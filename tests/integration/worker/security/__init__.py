"""Tests of `cdcworker.worker.security` on real servers and processes."""
