"""Unit tests of `cdcworker.worker.generators`."""
