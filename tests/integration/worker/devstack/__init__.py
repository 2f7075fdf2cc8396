"""Tests of `cdcworker.worker.devstack` on real servers and processes."""
