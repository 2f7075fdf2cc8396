"""Unit tests of `cdcworker.coordinator.kafka`."""
