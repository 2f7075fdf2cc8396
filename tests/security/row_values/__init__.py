"""Is the value of a row ever told by what says that the row failed? Rows that fail in many ways, and all that a worker says."""
