"""Unit tests of `cdcworker.connectors.warehouses.mysql`."""
