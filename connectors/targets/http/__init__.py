"""How are records posted to a web service? Requests of one or many records, signed, with ids by which a receiver takes each once."""
