"""Which format does a config name for its keys and its values, and what does it say to it?"""
