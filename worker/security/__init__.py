"""Who may do what over REST, how workers know each other, and what configs may reach."""
