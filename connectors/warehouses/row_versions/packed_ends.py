"""Ends of versions as rows of a table whose columns never change: key, position, and the time as bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdcworker.connectors.api.table_batch import KEY, POSITION, VALID_FROM
from cdcworker.connectors.warehouses.row_versions.timeline import empty_ends, ends_schema, with_ends

if TYPE_CHECKING:
    import pyarrow as pa

TIME_BYTES = 8
"""Of a time: microseconds since 1970, big-endian, with a sign."""


def packed(ends: pa.Table, column: str) -> pa.Table:
    """Returns the rows for ends; `column` is the name of the one that has the times."""
    import pyarrow as pa

    moments = ends[VALID_FROM].cast(pa.int64()).to_pylist()
    times = pa.array([at.to_bytes(TIME_BYTES, "big", signed=True) for at in moments], pa.binary())
    return pa.table({KEY: ends[KEY], POSITION: ends[POSITION], column: times})


def unpacked(rows: pa.Table, column: str) -> pa.Table:
    """Returns the ends of such rows, each once however often it is there."""
    import pyarrow as pa

    moments = [int.from_bytes(text, "big", signed=True) for text in rows[column].to_pylist()]
    times = pa.chunked_array([pa.array(moments, pa.timestamp("us", "UTC"))])
    return with_ends(empty_ends(), pa.table([rows[KEY], rows[POSITION], times], schema=ends_schema()))
