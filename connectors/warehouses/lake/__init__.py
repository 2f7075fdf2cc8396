"""How are Iceberg and Delta tables written? Merges through Spark SQL, with the ledger in the table itself."""
