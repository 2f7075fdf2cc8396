"""Everything that is tested, and with what."""
