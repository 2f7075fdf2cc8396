"""How do records get into Redis? Streams of changes, or the current state as hashes, JSON, strings and sets, each change once."""
