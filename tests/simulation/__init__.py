"""Searches through what can happen: the simulator of whole clusters and explicit-state models of the core rules."""
