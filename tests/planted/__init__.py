"""Bugs planted on purpose: one-line changes of the production code that some test has to notice, each of them."""
