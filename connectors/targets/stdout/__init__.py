"""Records as lines of JSON, for trying things."""
