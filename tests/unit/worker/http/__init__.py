"""Unit tests of `cdcworker.worker.http`."""
