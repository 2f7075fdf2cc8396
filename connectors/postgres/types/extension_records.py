"""Avro records of types of extensions, as Confluent's converter writes Debezium's."""

from __future__ import annotations

from typing import Any

INT16_MAX = 2**15 - 1


def sparse_vector_type(dimensions: int) -> dict[str, Any]:
    """pgvector's sparsevec. Debezium's has int16 for what counts dimensions, of which there may be 10^9."""
    number: Any = {"type": "int", "connect.type": "int16"} if 0 < dimensions <= INT16_MAX else "int"
    # A map whose keys are no strings, as Confluent's converter writes it.
    entry = {
        "type": "record",
        "name": "MapEntry",
        "namespace": "io.confluent.connect.avro",
        "fields": [{"name": "key", "type": number}, {"name": "value", "type": "double"}],
        "connect.internal.type": "MapEntry",
    }
    return {
        "type": "record",
        "name": "SparseVector",
        "namespace": "io.debezium.data",
        "fields": [
            {"name": "dimensions", "type": number},
            {"name": "vector", "type": {"type": "array", "items": entry}},
        ],
        "connect.doc": "Sparse vector",
        "connect.version": 1,
        "connect.name": "io.debezium.data.SparseVector",
    }
