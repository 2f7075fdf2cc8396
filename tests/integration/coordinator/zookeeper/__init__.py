"""Tests of `cdcworker.coordinator.zookeeper` on real servers and processes."""
