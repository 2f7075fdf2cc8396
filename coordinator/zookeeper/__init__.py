"""How does the cluster elect its leader on ZooKeeper? A lock, beside logs that stay on Kafka."""
