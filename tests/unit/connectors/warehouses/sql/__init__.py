"""Unit tests of `cdcworker.connectors.warehouses.sql`."""
