"""Unit tests of `cdcworker.connectors.warehouses.parquet`."""
