"""Unit tests of `cdcworker.worker.source`."""
