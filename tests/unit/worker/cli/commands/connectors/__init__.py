"""Unit tests of `cdcworker.worker.cli.commands.connectors`."""
