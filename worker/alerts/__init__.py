"""Who is told when a connector is in trouble? Incidents of the cluster, kept in a topic, and the web hooks that tell of them."""
