"""The `source` block of every change: Debezium's fields, then the position of the record."""

from __future__ import annotations

from typing import Any

from cdcworker.schemas.change import Avro


def _optional(avro: Avro) -> dict[str, Any]:
    return {"type": ["null", avro], "default": None}


_SNAPSHOT: dict[str, Any] = {
    "type": "string",
    "connect.version": 1,
    "connect.parameters": {
        "allowed": "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"
    },
    "connect.default": "false",
    "connect.name": "io.debezium.data.Enum",
}

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
        {"name": "snapshot", "type": [_SNAPSHOT, "null"], "default": "false"},
        {"name": "db", "type": "string"},
        {"name": "sequence", **_optional("string")},
        {"name": "ts_us", **_optional("long")},
        {"name": "ts_ns", **_optional("long")},
        {"name": "schema", "type": "string"},
        {"name": "table", "type": "string"},
        {"name": "txId", **_optional("long")},
        {"name": "lsn", **_optional("long")},
        {"name": "xmin", **_optional("long")},
        {"name": "origin", **_optional("string")},
        {"name": "origin_lsn", **_optional("long")},
        {"name": "commit_lsn", "type": "long"},
        {"name": "tx_index", "type": "int"},
        {"name": "tx_sub", "type": "int"},
    ],
    "connect.name": "io.debezium.connector.postgresql.Source",
}
"""Debezium's fields in their order, then the position of the record."""
