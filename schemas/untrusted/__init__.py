"""Untrusted input: how is text that others wrote read in bounded time and space, and what becomes of records that are no good?"""
