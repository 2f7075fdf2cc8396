"""How do the items of a JSON API become changes? Pages are asked for, items become rows, and what was read is in the position."""
