"""Tests of `cdcworker.worker.schema_registry` on real servers and processes."""
