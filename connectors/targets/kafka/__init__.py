"""How do records get into another Kafka? As they are, to the same partitions, once, with the offsets of consumer groups translated."""
