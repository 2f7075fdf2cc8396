"""Tests without I/O, room by room."""
