"""Values that a source benchmark reads back, decoded by another library and compared with the table's."""

from __future__ import annotations

import datetime as dt
import json
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from io import BytesIO
from typing import Any

import fastavro
import httpx

EPOCH = dt.datetime(1970, 1, 1)


def check_values(
    registry: httpx.Client, row_of: Callable[[int], Mapping[str, Any]], table: str, values: Iterable[bytes]
) -> int:
    """How many records there were: each `after` is the table's row, by every column."""
    schemas: dict[int, Any] = {}
    count = 0
    for value in values:
        number = int.from_bytes(value[1:5], "big")
        if number not in schemas:
            schemas[number] = fastavro.parse_schema(json.loads(registry.get(f"/schemas/ids/{number}").json()["schema"]))
        after = fastavro.schemaless_reader(BytesIO(value[5:]), schemas[number], None)["after"]
        row = row_of(after["id"])
        different = [name for name in row.keys() | after.keys() if not _same(row.get(name), after.get(name))]
        if different or not row:
            sys.exit(f"{table}: row {after['id']} differs in {sorted(different)}")
        count += 1
    return count


def _same(row: Any, found: Any) -> bool:
    """A value of the table and its form in Debezium's records."""
    if isinstance(row, dt.datetime):
        if isinstance(found, str):
            return dt.datetime.fromisoformat(found) == (row if row.tzinfo else row.replace(tzinfo=dt.UTC))
        if isinstance(found, dt.datetime):
            return found.replace(tzinfo=None) == row
        return (row - EPOCH) // dt.timedelta(microseconds=1) == found
    if isinstance(row, dt.date):
        return (row - EPOCH.date()).days == found
    if isinstance(row, uuid.UUID):
        return str(row) == str(found)
    if isinstance(row, dict | list):
        return bool(json.loads(found) == row)
    return bool(row == found)
