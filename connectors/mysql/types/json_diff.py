"""The differences by which MySQL logs a partial update of a JSON column."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from cdcworker.connectors.mysql.errors import MalformedError, UndecodableError
from cdcworker.connectors.mysql.types import json_text
from cdcworker.connectors.mysql.types.lengths import packed_length

Operation = Literal["replace", "insert", "remove"]
_OPERATIONS: Final[tuple[Operation, ...]] = ("replace", "insert", "remove")


class JsonChange(NamedTuple):
    """One step of a partial update, at a path such as `$.a[1]`."""

    operation: Operation
    path: str
    value: str | None
    """The new value's JSON text; None for a removal."""


class JsonDiff(NamedTuple):
    """What a partial update does to the value that the column had before, in order. Without changes the value is as it was."""

    changes: tuple[JsonChange, ...]


def read_diff(data: bytes) -> JsonDiff:
    """Reads the value of a JSON column that was logged in part."""
    changes, at = [], 0
    while at < len(data):
        change, at = _change(data, at)
        changes.append(change)
    return JsonDiff(tuple(changes))


def _change(data: bytes, at: int) -> tuple[JsonChange, int]:
    if data[at] >= len(_OPERATIONS):
        raise MalformedError("a JSON difference has an unknown operation")
    operation = _OPERATIONS[data[at]]
    path, at = _part(data, at + 1)
    try:
        text = path.decode()
    except UnicodeDecodeError:
        raise UndecodableError("a JSON path is not UTF-8") from None
    if operation == "remove":
        return JsonChange(operation, text, None), at
    value, at = _part(data, at)
    if not value:
        raise MalformedError("a JSON difference has no value")
    return JsonChange(operation, text, json_text.to_text(value)), at


def _part(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = packed_length(data, at)
    if at + size > len(data):
        raise MalformedError("a JSON difference is cut short")
    return data[at : at + size], at + size
