"""What can the PostgreSQL source be told? Its keys, Debezium's names for them, and what they mean."""
