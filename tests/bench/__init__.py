"""Benchmarks: each compares with a peer, or with what the servers themselves can do, in the same run."""
