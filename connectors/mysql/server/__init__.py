"""Can this server be read? Logging in, what its settings and rights are, and what mends those that do not fit."""
