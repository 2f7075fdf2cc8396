"""Which connectors shall there be? A folder of them, compared with a cluster, planned and applied."""
