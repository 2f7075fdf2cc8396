"""The command line's way to a cluster: requests, contexts, credentials, and files of connectors."""
