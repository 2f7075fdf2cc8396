"""How does the config of a sink name an object store, and which client does that describe?"""
