"""Which type of ClickHouse a column has, and rows on their way between Arrow and a table. What ClickHouse cannot hold becomes
the nearest that it holds: days and times past the years 1900 to 2299."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from cdcworker.connectors.warehouses.value_text import DAY_US

if TYPE_CHECKING:
    import pyarrow as pa

DAYS_MIN: Final = -25_567
DAYS_MAX: Final = 120_529
"""1900-01-01 and 2299-12-31, in days since 1970."""
UTC: Final = "DateTime64(6, 'UTC')"
_DECIMAL: Final = re.compile(r"Decimal\((\d+), (\d+)\)")


def type_of(kind: pa.DataType) -> str:
    """Returns the type, which a Nullable may stand around. A list is its JSON: no column of arrays can be null."""
    import pyarrow as pa

    if pa.types.is_decimal(kind):
        return f"Decimal({kind.precision}, {kind.scale})"
    if pa.types.is_timestamp(kind):
        return UTC
    return _names().get(kind, "String")


def arrow_of(name: str, before: pa.DataType) -> pa.DataType | None:
    """Returns the Arrow type of a column as somebody has changed it, which was `before`; None: it is none that the sink fills."""
    import pyarrow as pa

    plain = plain_type(name)
    if plain == type_of(before):
        return before
    if found := _DECIMAL.fullmatch(plain):
        return pa.decimal128(int(found[1]), int(found[2])) if int(found[1]) <= 38 else None
    known = {text: kind for kind, text in _names().items()}
    return {**known, "String": pa.string(), UTC: pa.timestamp("us", "UTC")}.get(plain)


def plain_type(name: str) -> str:
    """Returns a type without the Nullable around it."""
    return name[len("Nullable(") : -1] if name.startswith("Nullable(") else name


def _names() -> dict[pa.DataType, str]:
    import pyarrow as pa

    names = {pa.bool_(): "Bool", pa.int32(): "Int32", pa.int64(): "Int64", pa.date32(): "Date32"}
    return {**names, pa.float32(): "Float32", pa.float64(): "Float64"}


def is_bounded(kind: pa.DataType) -> bool:
    """Returns whether ClickHouse holds only some of a type's values."""
    import pyarrow as pa

    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def default_of(text: str, kind: pa.DataType) -> str:
    """Returns the text of a column's default as its values are stored."""
    import pyarrow as pa

    if not is_bounded(kind):
        return text
    return str(_to_stored(pa.chunked_array([[text]]).cast(kind)).cast(pa.string())[0].as_py())


def to_stored(rows: pa.Table) -> pa.Table:
    """Returns rows as they are inserted."""
    import pyarrow as pa

    out = {name: _to_stored(rows[name]) for name in rows.column_names}
    return pa.table(out)


def _to_stored(column: pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_list(kind):
        return pa.chunked_array([[_json(value) for value in column.to_pylist()]], pa.string())
    if pa.types.is_date(kind):
        return _clipped(column.cast(pa.int32()), DAYS_MIN, DAYS_MAX).cast(kind)
    if pa.types.is_timestamp(kind):
        wide = column.cast(pa.int64())
        return _clipped(wide, DAYS_MIN * DAY_US, (DAYS_MAX + 1) * DAY_US - 1).cast(pa.timestamp("us", "UTC"))
    return column


def _clipped(column: pa.ChunkedArray, low: int, high: int) -> pa.ChunkedArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    least, most = (pa.scalar(value, column.type) for value in (low, high))
    return pc.min_element_wise(pc.max_element_wise(column, least, skip_nulls=False), most, skip_nulls=False)


def _json(value: list[object] | None) -> str | None:
    """Bytes in it are hexadecimal."""
    return None if value is None else json.dumps(value, ensure_ascii=False, default=lambda item: bytes(item).hex())


def from_stored(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Returns rows that were read with the columns and types of `schema`."""
    import pyarrow as pa

    columns = [_from_stored(rows[field.name].combine_chunks(), field.type) for field in schema]
    return pa.table([*columns], schema=schema)


def _from_stored(column: pa.Array, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if pa.types.is_list(kind):
        hexes = pa.types.is_binary(kind.value_type)
        found = [None if text is None else json.loads(text) for text in column.to_pylist()]
        if hexes:
            found = [row and [None if item is None else bytes.fromhex(item) for item in row] for row in found]
        return pa.array(found, kind)
    if pa.types.is_boolean(kind) and not pa.types.is_boolean(column.type):
        return column.cast(pa.uint8()).cast(kind)
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).view(kind)
    return column.cast(kind)
