"""Unit tests of `cdcworker.connectors.capture.stream`."""
