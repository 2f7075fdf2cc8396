"""The worker without a cluster."""
