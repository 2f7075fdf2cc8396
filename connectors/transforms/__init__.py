"""How is one record changed on its way? Kafka Connect's transforms and predicates, and Debezium's."""
