"""Unit tests of `cdcworker.worker.offsets`."""
