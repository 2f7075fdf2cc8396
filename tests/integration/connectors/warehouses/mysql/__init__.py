"""The MySQL warehouse on real servers."""
