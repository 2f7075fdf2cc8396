"""Where does a Spark sink run? The JVM, its session, the cluster, and the source that reads Kafka."""
