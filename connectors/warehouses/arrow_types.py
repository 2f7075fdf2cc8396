"""Avro values to the Arrow types that a lake's files have, column by column; and which type takes both of two."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.arrow.decode import native
from cdcworker.connectors.warehouses import value_text
from cdcworker.connectors.warehouses.source_types import TargetColumn, parse_type

if TYPE_CHECKING:
    import pyarrow as pa

DIGITS_MAX = 38
SECONDS = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}"


def arrow_of(column: TargetColumn, plain: pa.DataType) -> pa.DataType:
    """The column's type in files; `plain` is what its Avro type is decoded to."""
    import pyarrow as pa

    found = parse_type(column.type)
    if column.kind == "decimal" and found is not None and found.args and found.args[0] <= DIGITS_MAX:
        return pa.decimal128(found.args[0], column.unit)
    fixed = {"bytes": pa.binary(), "date": pa.date32()}
    if column.kind in fixed:
        return fixed[column.kind]
    if column.kind in ("timestamp", "iso") and column.type.startswith("timestamp"):
        return pa.timestamp("us", "UTC" if column.type.endswith("with time zone") else None)
    if column.kind == "iso" and column.type == "date":
        return pa.date32()
    if column.kind == "array" and column.element is not None and column.element.kind == "plain":
        return pa.list_(plain.value_type)
    if column.kind == "plain" and not pa.types.is_nested(plain) and not pa.types.is_null(plain):
        return plain
    return pa.string()


def to_arrow(found: pa.Array, column: TargetColumn, wanted: pa.DataType) -> pa.Array:
    """The decoded column as `wanted`. Dates and times past what files hold become their nearest end."""
    import pyarrow as pa

    if found.type == wanted:
        return found
    if pa.types.is_null(found.type):
        return pa.nulls(len(found), wanted)
    if pa.types.is_decimal(wanted):
        return _decimal(found, column, wanted)
    if column.kind == "date":
        return _clipped(found, value_text.DAYS_MIN, value_text.DAYS_MAX).cast(pa.int32()).view(wanted)
    if column.kind == "timestamp":
        return _timestamp(found, column).view(wanted)
    if column.kind == "iso" and not pa.types.is_string(wanted):
        return _iso(found, wanted)
    if pa.types.is_string(wanted):
        return value_text.to_text(found, column)
    return found.cast(wanted)


def _decimal(found: pa.Array, column: TargetColumn, wanted: pa.DataType) -> pa.Array:
    """Files have no NaN: it is null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = value_text.decimal_numbers(found, column.unit)
    if numbers is not None:
        nan = pc.equal(pc.binary_length(found), 0)
        kept = pc.if_else(nan, pa.scalar(None, numbers.type), numbers) if pc.any(nan).as_py() else numbers
        return kept.cast(wanted)
    text = value_text.decimals(found, column.unit)
    return pc.if_else(pc.equal(text, "NaN"), pa.scalar(None, pa.string()), text).cast(wanted)


def _clipped(found: pa.Array, low: int, high: int) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    wide = found.cast(pa.int64())
    return pc.if_else(pc.less(wide, low), low, pc.if_else(pc.greater(wide, high), high, wide))


def is_clipped(found: pa.Array, column: TargetColumn) -> bool:
    """Returns whether `to_arrow` gives a date or time of the column another value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_null(found.type) or column.kind not in ("date", "timestamp", "iso"):
        return False
    if column.kind == "iso":
        usual = pc.match_substring_regex(found, r"^[0-9]{4}-")
        return bool(pc.any(pc.invert(pc.fill_null(usual, True))).as_py())
    low, high = (value_text.DAYS_MIN, value_text.DAYS_MAX) if column.kind == "date" else _bounds(column)
    wide = found.cast(pa.int64())
    return bool(pc.any(pc.or_(pc.less(wide, low), pc.greater(wide, high))).as_py())


def _bounds(column: TargetColumn) -> tuple[int, int]:
    """Returns the first and the last time that is held, in the column's unit."""
    if column.unit == 1:
        return value_text.US_MIN * 1000, value_text.US_MAX * 1000 + 999
    factor = max(1, column.unit // 1000)
    return -(-value_text.US_MIN // factor), value_text.US_MAX // factor


def _timestamp(found: pa.Array, column: TargetColumn) -> pa.Array:
    import pyarrow.compute as pc

    factor = max(1, column.unit // 1000)
    if column.unit == 1:
        return _clipped(
            pc.floor(pc.divide(found.cast("float64"), 1000.0)).cast("int64"), value_text.US_MIN, value_text.US_MAX
        )
    return pc.multiply(_clipped(found, *_bounds(column)), factor)


def instants(found: pa.Array) -> pa.Array | None:
    """Microseconds of ISO 8601 texts in UTC with four digits of a year; None where one is not so, or there is nothing to do
    it with."""
    import pyarrow as pa

    module = native()
    if module is None or not len(found):
        return None
    ends, data = value_text.offsets_and_data(found)
    mask = None if found.null_count == 0 else found.is_valid().buffers()[1]
    micros = module.instants(data, ends, mask)
    return None if micros is None else pa.Array.from_buffers(pa.int64(), len(found), [mask, pa.py_buffer(micros)])


def _iso(found: pa.Array, wanted: pa.DataType) -> pa.Array:
    """ISO 8601 texts; years past four digits and infinities become the nearest end."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = instants(found) if pa.types.is_timestamp(wanted) else None
    if numbers is not None:
        return numbers.view(wanted)
    usual = pc.match_substring_regex(found, SECONDS if pa.types.is_timestamp(wanted) else r"^[0-9]{4}-")
    if pc.all(pc.fill_null(usual, True)).as_py() is not True:
        late = pc.or_(pc.starts_with(found, "+"), pc.starts_with(found, "i"))
        ends = ("9999-12-31T23:59:59.999999Z", "0001-01-01T00:00:00Z")
        found = pc.if_else(pc.fill_null(usual, True), found, pc.if_else(late, *map(pa.scalar, ends)))
    if pa.types.is_date(wanted):
        return pc.utf8_slice_codeunits(found, 0, 10).cast(wanted)
    text = pc.if_else(pc.ends_with(found, "Z"), found, pc.binary_join_element_wise(found, "Z", ""))
    zoned = text.cast(pa.timestamp("us", "UTC"))
    return zoned if wanted.tz else zoned.cast(pa.timestamp("us", "UTC")).view(wanted)


_ORDER = ("int32", "int64")


def wider(have: pa.DataType, want: pa.DataType) -> pa.DataType | None:
    """The type that holds both; None: there is none that loses nothing."""
    import pyarrow as pa

    if have == want or pa.types.is_null(want):
        return have
    if pa.types.is_null(have):
        return want
    names = {str(have), str(want)}
    if names <= set(_ORDER):
        return pa.int64()
    if names <= {"float", "double"} or names == {"int32", "double"}:
        return pa.float64()
    if pa.types.is_decimal(have) and pa.types.is_decimal(want):
        scale = max(have.scale, want.scale)
        digits = max(have.precision - have.scale, want.precision - want.scale) + scale
        return pa.decimal128(digits, scale) if digits <= DIGITS_MAX else None
    if pa.types.is_string(have) or pa.types.is_string(want):
        simple = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_string)
        return pa.string() if all(any(kind(item) for kind in simple) for item in (have, want)) else None
    return None


Convert = Callable[[Any], Any]
