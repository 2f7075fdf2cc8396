"""The demo: a shop's live load, a screen, a killed leader, and the proof that both sides are equal."""
