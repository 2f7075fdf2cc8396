"""The benchmark of the PostgreSQL source."""
