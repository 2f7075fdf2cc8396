"""Unit tests of `cdcworker.worker.herder`."""
