"""Which requests does a monitoring system make? Metrics, and incidents of connectors."""
