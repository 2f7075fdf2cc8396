"""What exists on the PostgreSQL server? Slots, publications, tables, locks and roles."""
