"""Tests of `cdcworker.connectors.warehouses.parquet` on real servers and processes."""
