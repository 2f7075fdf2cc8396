"""Unit tests of `cdcworker.connectors.warehouses.lake.maintenance`."""
