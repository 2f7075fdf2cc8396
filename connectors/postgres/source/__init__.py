"""What does the running PostgreSQL task do? It streams, takes snapshots, and holds back tables that cannot be read."""
