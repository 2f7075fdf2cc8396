"""The ClickHouse warehouse on the real engine."""
