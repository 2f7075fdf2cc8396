"""The `source` block of every change: Debezium's fields of its MySQL and MariaDB connectors, then the position of the record."""

from __future__ import annotations

from typing import Any, Final

from cdcworker.connectors.capture.source_template import SNAPSHOT, optional


def source_schema(connector: str) -> dict[str, Any]:
    """Returns the schema of the block; `connector` is `mysql` or `mariadb`, by which Debezium names it."""
    return {
        "type": "record",
        "name": "Source",
        "namespace": f"io.debezium.connector.{connector}",
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
            {"name": "table", **optional("string")},
            {"name": "server_id", "type": "long"},
            {"name": "gtid", **optional("string")},
            {"name": "file", "type": "string"},
            {"name": "pos", "type": "long"},
            {"name": "row", "type": "int"},
            {"name": "thread", **optional("long")},
            {"name": "query", **optional("string")},
            {"name": "commit_lsn", "type": "long"},
            {"name": "tx_index", "type": "int"},
            {"name": "tx_sub", "type": "int"},
        ],
        "connect.name": f"io.debezium.connector.{connector}.Source",
    }


FIELDS: Final = tuple(str(field["name"]) for field in source_schema("mysql")["fields"])
"""Names of the block's fields, which both have."""
