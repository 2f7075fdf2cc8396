"""What goes with the changes of any stream? Signals, heartbeats, transaction metadata and the spool of open transactions."""
