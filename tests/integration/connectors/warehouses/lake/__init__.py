"""Tests of `cdcworker.connectors.warehouses.lake` on real servers and processes."""
