"""The commands about connectors: one of them, their offsets, and sets of them."""
