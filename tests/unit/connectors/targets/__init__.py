"""Tests of `cdcworker.connectors.targets`."""
