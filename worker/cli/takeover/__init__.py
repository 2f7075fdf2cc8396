"""How does a connector move from Debezium on Kafka Connect to this cluster, and back?"""
