"""Unit tests of `cdcworker.worker.java`."""
