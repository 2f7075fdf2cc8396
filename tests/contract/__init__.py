"""Suites that every implementation of a seam passes: backends of coordination, warehouses, dead letters.

The tests of each implementation run them with fixtures of their own.
"""
