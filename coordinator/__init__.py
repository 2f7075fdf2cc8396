"""How do workers form a cluster? Leadership, the logs that hold its state, and the pure core that decides who runs
what."""
