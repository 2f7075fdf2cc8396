"""The worker's herder: the thread that drives the pure core of the cluster, with its logs, its election and its plans."""
