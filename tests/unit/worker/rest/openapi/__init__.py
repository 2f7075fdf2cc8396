"""Unit tests of `cdcworker.worker.rest.openapi`."""
