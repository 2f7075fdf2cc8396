"""How do the rows of a query become changes? It is run again and again, by a cursor column or by comparison of all of its rows."""
