"""Unit tests of `cdcworker.worker.producers`."""
