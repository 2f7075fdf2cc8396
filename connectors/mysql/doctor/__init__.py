"""What is wrong with this server, or will be? Checks of its log, its replication and its tables, and what mends them."""
