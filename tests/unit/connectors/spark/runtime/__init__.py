"""Unit tests of `cdcworker.connectors.spark.runtime`."""
