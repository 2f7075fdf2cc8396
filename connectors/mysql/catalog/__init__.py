"""What does the server's catalog say of a table that its binary log does not? Columns, keys, defaults, and whether both fit together."""
