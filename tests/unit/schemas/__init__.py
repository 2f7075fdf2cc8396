"""Unit tests of `cdcworker.schemas`."""
