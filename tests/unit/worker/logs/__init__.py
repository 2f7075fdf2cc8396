"""Unit tests of `cdcworker.worker.logs`."""
