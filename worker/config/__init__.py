"""The operator's configuration: the worker's properties, config providers for secrets, and folders that connectors may
use."""
