"""What can a source of MySQL or MariaDB be told? Debezium's names and values, as one typed object."""
