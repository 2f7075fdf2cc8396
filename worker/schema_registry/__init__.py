"""Confluent's Schema Registry API over the schema log, for tools that read schemas by it."""
