"""Debezium's connector of MariaDB beside ours: the same events for the same statements."""
