"""Tests of `cdcworker.connectors.record_sink`."""
