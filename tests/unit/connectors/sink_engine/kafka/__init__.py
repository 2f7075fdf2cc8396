"""Unit tests of `cdcworker.connectors.sink_engine.kafka`."""
