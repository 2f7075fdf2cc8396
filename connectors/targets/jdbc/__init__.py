"""Rows of a relational database: changes of topics in the tables of PostgreSQL, MySQL or MariaDB."""
