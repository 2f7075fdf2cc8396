"""Unit tests of `cdcworker.connectors.capture.config`."""
