"""Lines of a file, both ways: the source and the sink that Kafka Connect's examples use."""
