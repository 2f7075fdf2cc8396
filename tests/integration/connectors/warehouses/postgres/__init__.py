"""Tests of `cdcworker.connectors.warehouses.postgres` on real servers and processes."""
