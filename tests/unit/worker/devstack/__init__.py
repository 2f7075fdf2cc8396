"""Unit tests of `cdcworker.worker.devstack`."""
