"""How do records get into NATS? Messages of a JetStream stream, with ids by which the server takes each once."""
