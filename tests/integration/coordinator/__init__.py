"""Tests of `cdcworker.coordinator` on real servers and processes."""
