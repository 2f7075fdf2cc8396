"""Debezium's single message transforms, which look into the envelope of a change."""
