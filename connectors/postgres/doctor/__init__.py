"""Is the PostgreSQL server as the connector needs it? Checks, and the statements that repair what they find."""
