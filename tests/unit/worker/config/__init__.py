"""Unit tests of `cdcworker.worker.config`."""
