"""Does a connector keep what the engine builds on? Checks of sources, sinks and transforms, in this process and on real Kafka."""
