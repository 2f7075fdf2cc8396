"""Unit tests of `cdcworker.worker.children`."""
