"""Real PostgreSQL, Kafka and ZooKeeper as child processes, for the demo, the tests and the benchmarks."""
