"""ClickHouse's engine as a server, for tests."""
