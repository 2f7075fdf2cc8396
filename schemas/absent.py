"""What a record holds besides plain values: stand-ins for values that are not there, and the shapes of odd arrays."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Sequence
from typing import Any, Final

from cdcworker.schemas.change import NO_DEFAULT, Change, Column, Row, Table

UNAVAILABLE = "__debezium_unavailable_value"
BOUNDS_HEADER: Final = "cdc.bounds"
"""JSON object: by field number, the dimensions and bounds of an array that its schema does not describe, as in
`{"3":"[0:2]"}`. Its elements are in the record in row-major order."""
BEFORE_BOUNDS_HEADER: Final = "cdc.bounds.before"
_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_VARIABLE: Final = "io.debezium.data.VariableScaleDecimal"
_UUID: Final = "io.debezium.data.Uuid"


def unavailable_value(column: Column, placeholder: str) -> Any:
    """What an unchanged TOAST value is written as: the placeholder where its type has one, else null, else zero."""
    found = _placeholder(column.type, placeholder)
    return found if found is not None or column.optional else zero_value(column)


def _placeholder(kind: Any, placeholder: str) -> Any:
    kind = kind if isinstance(kind, dict) else {"type": kind}
    if kind["type"] == "map":
        return {placeholder: placeholder}
    if kind["type"] == "array":
        return _array_placeholder(kind["items"], placeholder)
    if "logicalType" in kind or kind.get("connect.name") == _DECIMAL:
        return None
    return {"string": placeholder, "bytes": placeholder.encode()}.get(kind["type"])


def _array_placeholder(items: Any, placeholder: str) -> list[Any] | None:
    """As Debezium: numbers spell the placeholder out, byte by byte; a UUID is made of it."""
    kind = next((branch for branch in items if branch != "null"), None) if isinstance(items, list) else items
    plain = kind if isinstance(kind, dict) else {"type": kind}
    if plain["type"] in ("int", "long") and "connect.name" not in plain:
        return list(placeholder.encode())
    if plain.get("connect.name") == _UUID:
        return [str(uuid.UUID(bytes=hashlib.md5(placeholder.encode(), usedforsecurity=False).digest(), version=3))]
    found = None if plain["type"] in ("array", "map") else _placeholder(plain, placeholder)
    return None if found is None else [found]


def zero_value(column: Column) -> Any:
    """What a required column holds in a `before` that carries the key only: its default, else its type's zero."""
    if column.default is not NO_DEFAULT and column.default is not None:
        return column.default
    return _zero(column.type)


def _zero(kind: Any) -> Any:
    if isinstance(kind, list):
        return None if "null" in kind else _zero(kind[0])
    if not isinstance(kind, dict):
        return {"boolean": False, "float": 0.0, "double": 0.0, "bytes": b"", "string": ""}.get(kind, 0)
    if kind.get("connect.name") == _DECIMAL or kind.get("logicalType") == "decimal":
        # Without a byte it would be no number: Connect's Decimal refuses it.
        return bytes(kind.get("size", 1))
    if kind.get("connect.name") == _VARIABLE:
        return {"scale": 0, "value": bytes(1)}
    if kind["type"] == "record":
        return {field["name"]: _zero(field["type"]) for field in kind["fields"]}
    if kind["type"] == "fixed":
        return bytes(kind["size"])
    if kind["type"] == "enum":
        return kind["symbols"][0]
    return {"array": [], "map": {}}.get(kind["type"]) if kind["type"] in ("array", "map") else _zero(kind["type"])


def fill_row(table: Table, row: Row, unchanged: Sequence[int], placeholder: str | None = None) -> Row:
    """The row as it is written: placeholders for unchanged values, zeroes where a key-only image has none."""
    filled = [
        zero_value(column) if value is None and not column.optional else value
        for column, value in zip(table.columns, row, strict=True)
    ]
    for index in unchanged:
        filled[index] = unavailable_value(table.columns[index], placeholder or UNAVAILABLE)
    return tuple(filled)


# Arrays that their type does not describe


def array_columns(table: Table) -> tuple[int, ...]:
    return tuple(
        i for i, column in enumerate(table.columns) if isinstance(column.type, dict) and column.type["type"] == "array"
    )


def shaped(columns: Sequence[int], before: Row | None, after: Row | None) -> bool:
    """A list that carries `bounds` has a shape of its own."""
    return any(hasattr(row[i], "bounds") for row in (before, after) if row is not None for i in columns)


def bounds_headers(columns: Sequence[int], change: Change) -> list[tuple[str, bytes]]:
    out = []
    for name, row in ((BOUNDS_HEADER, change.after), (BEFORE_BOUNDS_HEADER, change.before)):
        if row is None:
            continue
        found = {str(i): row[i].bounds for i in columns if hasattr(row[i], "bounds")}
        if found:
            out.append((name, json.dumps(found, separators=(",", ":")).encode()))
    return out
