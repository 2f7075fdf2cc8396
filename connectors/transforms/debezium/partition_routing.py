"""PartitionRouting: the partition of a record by fields of its envelope."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from cdcworker.connectors.transforms.data import (
    DATE,
    DAY_MS,
    DECIMAL,
    TIME,
    TIMESTAMP,
    ConnectRecord,
    ConnectSchema,
    DataError,
)
from cdcworker.connectors.transforms.debezium.envelope import envelope_of

CHANGE: Final = "change"
"""Stands for the row image after a change, or before it where the row is deleted."""
_INT_MAX: Final = 0x7FFFFFFF


class PartitionRouting:
    """The partition that the sum of the fields' hash codes gives. Truncates, messages and records without any of the fields keep
    the partition of their key."""

    def __init__(self, fields: Sequence[str], partitions: int) -> None:
        self._paths = tuple(tuple(part.strip() for part in field.split(".")) for field in fields)
        self._partitions = partitions

    def apply(self, record: ConnectRecord) -> ConnectRecord | None:
        schema = envelope_of(record)
        if schema is None or record.value.get("op") in ("t", "m"):
            return record
        found = [_found(schema, record.value, path) for path in self._paths]
        hashes = [java_hash(value, of) for of, value in found if of is not None and value is not None]
        if not hashes:
            return record
        total = sum(hashes) & _INT_MAX
        routed = record.with_value(record.value_schema, record.value)
        routed.partition = (0 if total == _INT_MAX else total) % self._partitions
        return routed


def _found(schema: ConnectSchema, value: Mapping[str, Any], path: Sequence[str]) -> tuple[ConnectSchema | None, Any]:
    """Returns the schema and the value of a field; None: there is no such field in this record."""
    is_deleted = value.get("op") == "d"
    for step in path[:-1]:
        name = ("before" if is_deleted else "after") if step == CHANGE else step
        inner, of = value.get(name), schema.by_name.get(name)
        if inner is None or of is None or of.type != "struct":
            return None, None
        schema, value = of, inner
    of = schema.by_name.get(path[-1])
    return (None, None) if of is None else (of, schema.of(value, path[-1]))


def java_hash(value: Any, schema: ConnectSchema) -> int:
    """Returns what `hashCode` returns for the value in Java, as any integer whose lower 32 bits are the same.

    Raises DataError for a struct, a list or a map.
    """
    logical = schema.name if schema.name in (DECIMAL, DATE, TIME, TIMESTAMP) else None
    if logical == DECIMAL:
        return _of_decimal(int.from_bytes(value, "big", signed=True), int((schema.parameters or {}).get("scale", "0")))
    if logical is not None:
        return _of_long(value * DAY_MS if logical == DATE else value)
    hash_of = _HASHES.get(schema.type)
    if hash_of is None:
        raise DataError(f"A {schema.type} has no hash code by which a partition could be found")
    return hash_of(value)


def _of_long(value: int) -> int:
    bits = value & 0xFFFFFFFFFFFFFFFF
    return (bits ^ (bits >> 32)) & 0xFFFFFFFF


def _of_text(value: str) -> int:
    hash = 0
    units = value.encode("utf-16-le", "surrogatepass")
    for unit in struct.unpack(f"<{len(units) // 2}H", units):
        hash = (31 * hash + unit) & 0xFFFFFFFF
    return hash


def _of_bytes(value: bytes) -> int:
    """Returns the hash code of a ByteBuffer."""
    hash = 1
    for byte in reversed(value):
        hash = (31 * hash + (byte - 256 if byte > 127 else byte)) & 0xFFFFFFFF
    return hash


def _of_decimal(unscaled: int, scale: int) -> int:
    hash, magnitude = 0, abs(unscaled)
    for shift in range((magnitude.bit_length() + 31) // 32 * 32 - 32, -1, -32):
        hash = (31 * hash + (magnitude >> shift & 0xFFFFFFFF)) & 0xFFFFFFFF
    return 31 * (-hash if unscaled < 0 else hash) + scale


def _of_double(value: float) -> int:
    return _of_long(int.from_bytes(struct.pack(">d", value if value == value else float("nan")), "big"))


def _of_float(value: float) -> int:
    return int.from_bytes(struct.pack(">f", value if value == value else float("nan")), "big")


_HASHES: Final[Mapping[str, Callable[[Any], int]]] = {
    **dict.fromkeys(("int8", "int16", "int32"), int),
    "int64": _of_long,
    "string": _of_text,
    "bytes": _of_bytes,
    "boolean": lambda value: 1231 if value else 1237,
    "float32": _of_float,
    "float64": _of_double,
}
