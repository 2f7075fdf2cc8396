"""Where does a connector stand, and how is that changed? The offsets of sources and sinks behind REST."""
