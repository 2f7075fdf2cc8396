"""The worker's logs: their set-up, levels that can be changed while it runs, and the redaction of secrets."""
