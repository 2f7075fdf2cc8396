"""Tests on real parts: brokers, databases, processes."""
