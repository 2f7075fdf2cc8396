"""What does the cluster do next? Pure functions from (state, event, time) to (new state, commands); no I/O."""
