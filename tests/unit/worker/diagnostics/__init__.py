"""Unit tests of `cdcworker.worker.diagnostics`."""
