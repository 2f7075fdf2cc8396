"""Unit tests of `cdcworker.worker.processes`."""
