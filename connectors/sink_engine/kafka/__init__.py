"""What does a sink look up in Kafka beside its query? Brokers, group offsets, lag and tables already written."""
