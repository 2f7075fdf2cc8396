"""Rows out of nothing, and deliberate trouble, for trials and tests."""
