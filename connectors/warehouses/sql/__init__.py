"""What do warehouses that speak SQL share? A ledger in tables, rows merged from stage tables, and one transaction for both."""
