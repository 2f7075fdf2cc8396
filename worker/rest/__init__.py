"""The Connect-compatible REST API."""
