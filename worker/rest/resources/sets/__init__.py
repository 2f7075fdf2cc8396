"""Which requests are about several connectors at once? Changes of sets, labels, and the logins that connectors share."""
