"""Tests of `cdcworker.connectors.warehouses` on real servers and processes."""
