"""Servers of queues and stores that sinks of records write to, as tests use them."""
