"""Tests of `cdcworker.connectors.spark.runtime` on real servers and processes."""
