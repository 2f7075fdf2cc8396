"""Unit tests of `cdcworker.coordinator.log`."""
