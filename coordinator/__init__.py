"""Who does what, and where is it remembered? Logs, leadership and the cluster's pure core."""
