"""Avro records of types of extensions, as Confluent's converter writes Debezium's."""

from __future__ import annotations

from typing import Any


def geometry_type(name: str) -> dict[str, Any]:
    """PostGIS' geometry or geography."""
    return {
        "type": "record",
        "name": name,
        "namespace": "io.debezium.data.geometry",
        "fields": [{"name": "wkb", "type": "bytes"}, {"name": "srid", "type": ["null", "int"], "default": None}],
        "connect.doc": name,
        "connect.version": 1,
        "connect.name": f"io.debezium.data.geometry.{name}",
    }


_INT16 = {"type": "int", "connect.type": "int16"}
# A map whose keys are no strings, as Confluent's converter writes it.
_MAP_ENTRY = {
    "type": "record",
    "name": "MapEntry",
    "namespace": "io.confluent.connect.avro",
    "fields": [{"name": "key", "type": _INT16}, {"name": "value", "type": "double"}],
    "connect.internal.type": "MapEntry",
}
SPARSE_VECTOR: dict[str, Any] = {
    "type": "record",
    "name": "SparseVector",
    "namespace": "io.debezium.data",
    "fields": [
        {"name": "dimensions", "type": _INT16},
        {"name": "vector", "type": {"type": "array", "items": _MAP_ENTRY}},
    ],
    "connect.doc": "Sparse vector",
    "connect.version": 1,
    "connect.name": "io.debezium.data.SparseVector",
}
