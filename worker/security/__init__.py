"""Security: who may do what, how workers authenticate each other's requests, and what connectors' configs may reach."""
