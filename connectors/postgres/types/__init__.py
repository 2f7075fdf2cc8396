"""What does a PostgreSQL value mean? Types and their text and binary forms as Avro values."""
