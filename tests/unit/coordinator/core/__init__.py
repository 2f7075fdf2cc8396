"""Unit tests of `cdcworker.coordinator.core`."""
