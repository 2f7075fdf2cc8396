"""The DuckDB warehouse on real files."""
