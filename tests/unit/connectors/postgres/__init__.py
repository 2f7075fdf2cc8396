"""The PostgreSQL source without a server."""
