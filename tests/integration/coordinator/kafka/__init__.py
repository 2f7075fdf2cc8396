"""Tests of `cdcworker.coordinator.kafka` on real servers and processes."""
