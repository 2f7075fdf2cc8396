"""How does a connector log in to MySQL or MariaDB? Where it may connect to, TLS, and what a server may learn of the password."""
