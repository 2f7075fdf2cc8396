"""Placeholders for values that the database did not send or that no reader holds, and headers for the dimensions of arrays."""

from __future__ import annotations

import copy
import hashlib
import json
import struct
import uuid
from collections.abc import Sequence
from typing import Any, Final

from cdcworker.schemas.change import NO_DEFAULT, Change, Column, Row, Table

UNAVAILABLE = "__debezium_unavailable_value"
"""The default placeholder of an unchanged TOAST value (Debezium's `unavailable.value.placeholder`)."""
BOUNDS_HEADER: Final = "cdc.bounds"
"""The header with the dimensions and bounds of arrays in `after` that their schema does not describe, as JSON by column
index: `{"3":"[0:2]"}`. The elements are in the record in row-major order."""
BEFORE_BOUNDS_HEADER: Final = "cdc.bounds.before"
"""The same header for arrays in `before`."""
DIGITS_MAX: Final = 1_000
"""The most digits that a decimal of a source has."""
_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_VARIABLE: Final = "io.debezium.data.VariableScaleDecimal"
_UUID: Final = "io.debezium.data.Uuid"
_FREE: Final = frozenset((None, *(f"io.debezium.data.{name}" for name in ("Json", "Xml", "Ltree", "Tsvector"))))
"""Types that hold the placeholder as it is, by their name in Kafka Connect: Debezium's readers compare it."""
_ZEROES: Final[dict[str, Any]] = {
    _UUID: str(uuid.UUID(int=0)),
    "io.debezium.data.Json": "{}",
    "io.debezium.time.ZonedTimestamp": "1970-01-01T00:00:00Z",
    "io.debezium.time.ZonedTime": "00:00:00Z",
    "io.debezium.time.IsoDate": "1970-01-01Z",
    "io.debezium.time.IsoTime": "00:00:00Z",
    "io.debezium.time.IsoTimestamp": "1970-01-01T00:00:00Z",
    "io.debezium.time.Interval": "P0Y0M0DT0H0M0S",
    # Connect's Decimal refuses a number of zero bytes.
    _VARIABLE: {"scale": 0, "value": b"\0"},
    "io.debezium.data.geometry.Point": {"x": 0.0, "y": 0.0, "wkb": struct.pack("<BIdd", 1, 1, 0.0, 0.0), "srid": None},
    # A collection without members.
    "io.debezium.data.geometry.Geometry": {"wkb": struct.pack("<BII", 1, 7, 0), "srid": None},
    "io.debezium.data.geometry.Geography": {"wkb": struct.pack("<BII", 1, 7, 0), "srid": None},
}
"""The zero of types that do not take any value of their Avro type, by the name of the type in Kafka Connect."""


def unscaled(number: int) -> bytes:
    """The shortest two's complement, as Java's BigInteger writes it."""
    return number.to_bytes(((number if number >= 0 else ~number).bit_length() >> 3) + 1, "big", signed=True)


def beyond_precision(precision: int) -> bytes:
    """Returns what is written in keys for `NaN` of a decimal with so many digits: the least unscaled number with more digits,
    which no value of the type has and every reader takes."""
    return unscaled(int(10**precision))


def unavailable_value(column: Column, placeholder: str) -> Any:
    """Returns the value written for an unchanged TOAST value: the placeholder if its type has one, else null, else
    zero."""
    value = _placeholder(column.type, placeholder)
    return value if value is not None or column.optional else zero_value(column)


def _placeholder(kind: Any, placeholder: str) -> Any:
    kind = kind if isinstance(kind, dict) else {"type": kind}
    if kind["type"] == "map":
        return {placeholder: placeholder}
    if kind["type"] == "array":
        return _array_placeholder(kind["items"], placeholder)
    if "logicalType" in kind or kind.get("connect.name") not in _FREE:
        return None
    return {"string": placeholder, "bytes": placeholder.encode()}.get(kind["type"])


def _array_placeholder(items: Any, placeholder: str) -> list[Any] | None:
    """Returns Debezium's placeholder of an array: the placeholder's bytes as numbers, or a UUID derived from it."""
    kind = next((branch for branch in items if branch != "null"), None) if isinstance(items, list) else items
    plain = kind if isinstance(kind, dict) else {"type": kind}
    if plain["type"] in ("int", "long") and "connect.name" not in plain:
        return list(placeholder.encode())
    if plain.get("connect.name") == _UUID:
        return [str(uuid.UUID(bytes=hashlib.md5(placeholder.encode(), usedforsecurity=False).digest(), version=3))]
    value = None if plain["type"] in ("array", "map") else _placeholder(plain, placeholder)
    return None if value is None else [value]


def zero_value(column: Column) -> Any:
    """Returns the value of a required column in a `before` that holds only the key: its default, else its type's
    zero."""
    if column.default is not NO_DEFAULT and column.default is not None:
        return column.default
    return _zero(column.type) if column.zero is None else column.zero


def _zero(kind: Any) -> Any:
    if isinstance(kind, list):
        return None if "null" in kind else _zero(kind[0])
    if not isinstance(kind, dict):
        return {"boolean": False, "float": 0.0, "double": 0.0, "bytes": b"", "string": ""}.get(kind, 0)
    name = kind.get("connect.name")
    if name in _ZEROES:
        return copy.copy(_ZEROES[name])
    if name == _DECIMAL or kind.get("logicalType") == "decimal":
        return bytes(kind.get("size", 1))
    if kind["type"] == "record":
        return {field["name"]: _zero(field["type"]) for field in kind["fields"]}
    if kind["type"] == "fixed":
        return bytes(kind["size"])
    if kind["type"] == "enum":
        return kind["symbols"][0]
    return {"array": [], "map": {}}.get(kind["type"]) if kind["type"] in ("array", "map") else _zero(kind["type"])


def fill_row(table: Table, row: Row, unchanged: Sequence[int], placeholder: str | None = None) -> Row:
    """Returns the row as it is written: with placeholders for unchanged values and zeroes for missing required ones."""
    filled = [
        zero_value(column) if value is None and not column.optional else value
        for column, value in zip(table.columns, row, strict=True)
    ]
    for index in unchanged:
        filled[index] = unavailable_value(table.columns[index], placeholder or UNAVAILABLE)
    return tuple(filled)


# Dimensions and bounds of arrays


def array_columns(table: Table) -> tuple[int, ...]:
    """Returns the indexes of the array columns."""
    return tuple(
        i for i, column in enumerate(table.columns) if isinstance(column.type, dict) and column.type["type"] == "array"
    )


def has_own_bounds(columns: Sequence[int], before: Row | None, after: Row | None) -> bool:
    """Tells whether an array in these columns has dimensions or bounds of its own: then its list carries `bounds`."""
    return any(hasattr(row[i], "bounds") for row in (before, after) if row is not None for i in columns)


def bounds_headers(columns: Sequence[int], change: Change) -> list[tuple[str, bytes]]:
    """Returns the headers with the dimensions and bounds of a change's arrays."""
    out = []
    for name, row in ((BOUNDS_HEADER, change.after), (BEFORE_BOUNDS_HEADER, change.before)):
        if row is None:
            continue
        bounds = {str(i): row[i].bounds for i in columns if hasattr(row[i], "bounds")}
        if bounds:
            out.append((name, json.dumps(bounds, separators=(",", ":")).encode()))
    return out
