"""Unit tests of `cdcworker.worker.linux`."""
