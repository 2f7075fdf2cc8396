"""Unit tests of `cdcworker.worker.quickstart`."""
