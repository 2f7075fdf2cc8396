"""What is a change? Types, wire formats and schema identity; opens no socket."""
