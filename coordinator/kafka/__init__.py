"""How does coordination work on Kafka? Clients, compacted logs, and leadership by a consumer group."""
