"""The `source` block of sources that have no log: which connector, when, which table, and the position."""

from __future__ import annotations

from cdcworker.schemas.change import JsonObject

_FIELDS = (
    ("version", "string"),
    ("connector", "string"),
    ("name", "string"),
    ("ts_ms", "long"),
    ("schema", "string"),
    ("table", "string"),
    ("commit_lsn", "long"),
    ("tx_index", "int"),
    ("tx_sub", "int"),
)


def source_schema(namespace: str) -> JsonObject:
    """Returns the Avro record of the block, in a namespace of its source's own."""
    fields = [{"name": name, "type": kind} for name, kind in _FIELDS]
    return {"type": "record", "name": "Source", "namespace": namespace, "fields": fields}
