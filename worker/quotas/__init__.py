"""How many connectors and tasks may those of one label be? Quotas of the operator, and what a change would make of them."""
