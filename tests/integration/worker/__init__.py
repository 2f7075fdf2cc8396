"""Tests of `cdcworker.worker` on real servers and processes."""
