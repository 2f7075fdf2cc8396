"""Unit tests of `cdcworker.connectors.telemetry`."""
