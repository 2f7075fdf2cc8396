"""The `source` block of every change: Debezium's fields, then the position of the record."""

from __future__ import annotations

from typing import Any

from cdcworker.connectors.capture.source_template import SNAPSHOT, optional

SOURCE_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Source",
    "namespace": "io.debezium.connector.postgresql",
    "connect.version": 1,
    "fields": [
        {"name": "version", "type": "string"},
        {"name": "connector", "type": "string"},
        {"name": "name", "type": "string"},
        {"name": "ts_ms", "type": "long"},
        {"name": "snapshot", "type": [SNAPSHOT, "null"], "default": "false"},
        {"name": "db", "type": "string"},
        {"name": "sequence", **optional("string")},
        {"name": "ts_us", **optional("long")},
        {"name": "ts_ns", **optional("long")},
        {"name": "schema", "type": "string"},
        {"name": "table", "type": "string"},
        {"name": "txId", **optional("long")},
        {"name": "lsn", **optional("long")},
        {"name": "xmin", **optional("long")},
        {"name": "origin", **optional("string")},
        {"name": "origin_lsn", **optional("long")},
        {"name": "commit_lsn", "type": "long"},
        {"name": "tx_index", "type": "int"},
        {"name": "tx_sub", "type": "int"},
    ],
    "connect.name": "io.debezium.connector.postgresql.Source",
}
"""Debezium's fields in their order, then the position of the record."""
