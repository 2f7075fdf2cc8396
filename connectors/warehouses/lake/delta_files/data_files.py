"""Data files of a Delta table: Parquet, with what the log says of each."""

from __future__ import annotations

import json
import time
import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.warehouses.storage.files import Storage

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP: Final = 131_072
STATS_COLUMNS: Final = 32
"""Of so many columns Delta keeps statistics unless a table says otherwise."""
TEXT_MAX: Final = 32
DIGITS_MAX: Final = 15
"""A number of JSON has no more for all of its readers."""
_LAST = "\U0010ffff"


def write(files: Storage, rows: pa.Table, plain: tuple[str, ...]) -> dict[str, Any]:
    """Writes a file and returns its add action. `plain` are columns whose values are nearly all different: a dictionary
    of them is work for nothing."""
    from pyarrow import parquet

    name = f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"
    coded = [column for column in rows.column_names if column not in plain]

    def fill(sink: Any) -> None:
        parquet.write_table(
            rows, sink, row_group_size=ROW_GROUP, compression="snappy", use_dictionary=coded, write_statistics=True
        )

    size = files.write(name, fill)
    return {
        "path": name,
        "partitionValues": {},
        "size": size,
        "modificationTime": time.time_ns() // 1_000_000,
        "dataChange": True,
        "stats": json.dumps(stats(rows), separators=(",", ":"), ensure_ascii=False),
    }


def stats(rows: pa.Table) -> dict[str, Any]:
    """What Delta's readers leave files out by."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    import pyarrow as pa
    import pyarrow.compute as pc

    for name in rows.column_names[:STATS_COLUMNS]:
        column = rows[name]
        if pa.types.is_nested(column.type):
            continue
        nulls[name] = column.null_count
        if column.null_count == len(column) or pa.types.is_binary(column.type) or pa.types.is_boolean(column.type):
            continue
        if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
            # Spark counts it as the greatest number, JSON has none.
            continue
        ends = pc.min_max(column)
        low, high = _told(ends["min"], False), _told(ends["max"], True)
        if low is not None and high is not None:
            least[name], most[name] = low, high
    return {"numRecords": rows.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}


def _told(value: pa.Scalar, up: bool) -> Any:
    """A bound of a column in JSON; None: there is none."""
    import pyarrow as pa

    if pa.types.is_timestamp(value.type):
        return _instant(value, up)
    found = value.as_py()
    if isinstance(found, str):
        if len(found) <= TEXT_MAX:
            return found
        if not up:
            return found[:TEXT_MAX]
        return None if found[TEXT_MAX] == _LAST else found[:TEXT_MAX] + _LAST
    if isinstance(found, float):
        return found if abs(found) != float("inf") else None
    if isinstance(found, Decimal):
        return float(found) if len(found.as_tuple().digits) <= DIGITS_MAX else None
    if isinstance(found, int):
        return found
    return found.isoformat() if pa.types.is_date(value.type) else None


def _instant(value: pa.Scalar, up: bool) -> str | None:
    """Readers count milliseconds."""
    import pyarrow as pa

    micros = value.value
    millis = -(-micros // 1000) if up else micros // 1000
    try:
        found = pa.scalar(millis, pa.timestamp("ms")).as_py()
    except (OverflowError, ValueError):
        return None
    return str(found.isoformat(timespec="milliseconds")) + ("Z" if value.type.tz else "")
