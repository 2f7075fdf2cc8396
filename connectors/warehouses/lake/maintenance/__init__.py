"""What keeps the tables of a lake small and quick to read? Compaction, expiry of snapshots, removal of orphan files."""
