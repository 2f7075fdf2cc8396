"""How do records get into RabbitMQ? Messages of an exchange, each confirmed by the server, with ids by which a consumer takes each once."""
