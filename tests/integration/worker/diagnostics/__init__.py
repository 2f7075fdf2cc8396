"""Tests of `cdcworker.worker.diagnostics` on real servers and processes."""
