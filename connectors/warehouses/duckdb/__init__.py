"""How is a file of DuckDB written? Rows, deletes, columns and ledger in one transaction, by one process at a time."""
