"""Rows on their way into a stage table, from which they are merged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.arrow.array_ops import one
from cdcworker.connectors.sink_errors import TARGET_VALUE
from cdcworker.connectors.warehouses import arrow_types
from cdcworker.connectors.warehouses.sql.target_table import SqlTable
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.topics import unescape

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class StageRows:
    """Rows for a stage table. `unchanged` flags by column those that did not bring it, `origins` are the rows' keys of before, and
    `keep_key`: the encoded keys go with the rows."""

    rows: pa.Table
    unchanged: Mapping[str, Any] = field(default_factory=dict)
    origins: pa.Table | None = None
    keep_key: bool = True

    @property
    def bits(self) -> dict[str, int]:
        return bits_of(self.unchanged)


def bits_of(unchanged: Mapping[str, Any]) -> dict[str, int]:
    """Returns the bit of each column that some row did not bring, by its name in the target."""
    return {unescape(column): bit for bit, column in enumerate(unchanged)}


def flags_of(unchanged: Mapping[str, Any]) -> pa.Array:
    """Returns for each row a digit per column as bytes, 1 where it is kept; null where nothing is."""
    import numpy as np
    import pyarrow as pa

    matrix = np.stack([np.asarray(flags, np.bool_) for flags in unchanged.values()], axis=1)
    digits = np.ascontiguousarray(matrix.astype(np.uint8) + ord("0"))
    ends = np.arange(len(digits) + 1, dtype=np.int32) * digits.shape[1]
    some = pa.array(matrix.any(axis=1)).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), len(digits), [some, pa.py_buffer(ends), pa.py_buffer(digits)])


def check_key(target: SqlTable, rows: pa.Table) -> None:
    """Refuses rows whose key has a day or a time that the server cannot hold: the nearest one may be another row's."""
    for column in target.columns:
        if column.name not in target.key or column.field not in rows.column_names:
            continue
        if arrow_types.is_clipped(one(rows[column.field]), column):
            where = {"table": target.plain_name, "column": column.name}
            raise CdcError(TARGET_VALUE, "a key has a day or a time past what the server holds", where=where)
