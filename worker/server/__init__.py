"""The HTTP server: from the socket through its limits to the handlers."""
