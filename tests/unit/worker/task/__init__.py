"""Unit tests of `cdcworker.worker.task`."""
