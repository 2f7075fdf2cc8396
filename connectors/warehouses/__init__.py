"""What do all warehouses share? Rows to merge, schema changes, dead letters and consistent sets."""
