"""The protocol between a worker and its task processes: task specs, messages, heartbeats and limits."""
