"""The commands that need no cluster: they start one for a while, or read a database in their own process."""
