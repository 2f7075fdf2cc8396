"""Linux processes: groups, parent-death signals, orphans, and memory and processor time from `/proc`."""
