"""How do we talk to the outside? Sources and sinks behind the seams in `api`."""
