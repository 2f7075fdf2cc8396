"""Tests of `cdcworker.connectors.sink_engine.kafka` on real servers and processes."""
