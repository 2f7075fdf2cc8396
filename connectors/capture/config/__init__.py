"""What can the source of any database be told? Filters, masks, message keys, and keys under Debezium's names."""
