"""Unit tests of `cdcworker.connectors.arrow`."""
