"""Unit tests of `cdcworker.worker.rest.resources.sets`."""
