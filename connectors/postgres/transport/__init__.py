"""How do bytes come from the server and go to it? Connections, TLS, authentication and the replication stream."""
