"""Unit tests of `cdcworker.worker.schema_registry`."""
