"""Unit tests of `cdcworker.worker.cli`."""
