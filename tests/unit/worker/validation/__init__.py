"""Unit tests of `cdcworker.worker.validation`."""
