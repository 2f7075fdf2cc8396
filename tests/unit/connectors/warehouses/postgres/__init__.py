"""Unit tests of `cdcworker.connectors.warehouses.postgres`."""
