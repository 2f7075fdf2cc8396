"""Where can records go without Spark? Each folder is one target; none knows another."""
