"""The demo: a live load on a shop's database, a screen, a killed leader, and the proof that both sides are equal."""
