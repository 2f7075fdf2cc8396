"""Unit tests of `cdcworker.worker.dead_letters`."""
