"""A task's own process: its entry point, the fork server that starts it, the loop of sinks, and the standby."""
