"""Chains of transforms: the keys that make them, how records pass them, and how what comes out is written."""
