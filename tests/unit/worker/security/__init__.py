"""Who may do what, and what must not get in or out."""
