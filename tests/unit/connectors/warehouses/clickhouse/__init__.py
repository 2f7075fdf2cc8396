"""Unit tests of `cdcworker.connectors.warehouses.clickhouse`."""
