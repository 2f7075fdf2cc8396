"""Real servers as child processes, for the demo, the tests and the benchmarks: databases, Kafka, ZooKeeper, queues."""
