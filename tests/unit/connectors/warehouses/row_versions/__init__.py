"""Unit tests of `cdcworker.connectors.warehouses.row_versions`."""
