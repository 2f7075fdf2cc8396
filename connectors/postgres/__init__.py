"""The PostgreSQL source: logical decoding by pgoutput, read through psycopg."""
