"""Linux processes and files: groups, parent-death signals, orphans, memory and processor time from `/proc`, and who may write a
file."""
