"""Unit tests of `cdcworker.worker.protocol`."""
