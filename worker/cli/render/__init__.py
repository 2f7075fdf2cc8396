"""Results as text on a terminal: tables, states, and the screens of `tail` and `top`."""
