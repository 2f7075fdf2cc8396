"""How does the binary log come from a server? The replication commands, and the stream of events that answers them."""
