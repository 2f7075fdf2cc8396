"""Where do the rows of a table stand in its data files? Live files, their deleted rows, and an index of keys."""
