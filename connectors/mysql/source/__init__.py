"""What does the running task do? It reads the binary log from its stored position, and rows of tables beside it."""
