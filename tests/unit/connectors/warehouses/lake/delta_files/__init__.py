"""Tests of Delta tables by their files."""
