"""What is a change? Types, wire formats and schema identity; no module opens a socket."""
