"""Which parsers the native core knows, and the layout of a table's rows for it."""

from __future__ import annotations

from typing import Any, Final

from cdcworker.connectors.capture.column_mapping import Parser
from cdcworker.connectors.capture.native.row_layouts import (
    CALL,
    SKIPPED,
    ColumnForm,
    Encode,
    column_arguments,
    place_arguments,
)
from cdcworker.connectors.postgres.decode.table_plan import TableDecodePlan
from cdcworker.connectors.postgres.types import bounded_values as bounded
from cdcworker.connectors.postgres.types import text_values as v
from cdcworker.schemas.avro_binary import Write, write_string
from cdcworker.schemas.change import Column
from cdcworker.schemas.record_layout import RecordLayout

TEXT, INT, LONG, BOOLEAN, FLOAT, DOUBLE, HEX, DECIMAL, VARIABLE, DATE, TIME, TIMESTAMP, ZONED, DIGITS = range(2, 16)
"""As `_core.pyx` numbers them."""
_MICROS, _MILLIS, _NANOS = range(3)
_LONGS: Final = {
    v.time_us: (TIME, _MICROS),
    v.time_ms: (TIME, _MILLIS),
    v.time_ns: (TIME, _NANOS),
    v.timestamp_us: (TIMESTAMP, _MICROS),
    v.timestamp_ms: (TIMESTAMP, _MILLIS),
    v.timestamp_ns: (TIMESTAMP, _NANOS),
    bounded.time_us: (TIME, _MICROS),
    bounded.time_ms: (TIME, _MILLIS),
    bounded.time_ns: (TIME, _NANOS),
    bounded.timestamp_us: (TIMESTAMP, _MICROS),
    bounded.timestamp_ms: (TIMESTAMP, _MILLIS),
    bounded.finite_timestamp_ms: (TIMESTAMP, _MILLIS),
    bounded.timestamp_ns: (TIMESTAMP, _NANOS),
}
"""The core does what lies within the range of every type alone, and leaves other values to the parser."""
_KINDS: Final[dict[tuple[Any, str], tuple[int, int]]] = {
    (v.text, "string"): (TEXT, 0),
    (int, "int"): (INT, 0),
    (int, "long"): (LONG, 0),
    (v.boolean, "boolean"): (BOOLEAN, 0),
    (float, "float"): (FLOAT, 0),
    (float, "double"): (DOUBLE, 0),
    (v.hex_bytes, "bytes"): (HEX, 0),
    **dict.fromkeys(
        (
            (parse, "record")
            for parse in (v.variable_decimal, bounded.variable_decimal, bounded.required_variable_decimal)
        ),
        (VARIABLE, 0),
    ),
    **dict.fromkeys(((parse, "int") for parse in (v.days, bounded.days, bounded.finite_days)), (DATE, 0)),
    (v.timestamptz_text, "string"): (ZONED, -1),
    (v.decimal_text, "string"): (DIGITS, 0),
    **{(parse, avro): kind for parse, kind in _LONGS.items() for avro in ("int", "long")},
}
_NOT_PLAIN: Final = (CALL, FLOAT, DOUBLE)
"""Equal text forms may be unequal values: NaN."""


def kind_of(column: Column, parse: Parser) -> tuple[int, int]:
    """The kind of a column and its argument. What is not known is a call."""
    avro = column.type["type"] if isinstance(column.type, dict) else column.type
    scale = getattr(parse, "scale", None)
    if scale is not None and avro == "bytes":
        return DECIMAL, int(scale)
    digits = getattr(parse, "fraction", None)
    if digits is not None and avro == "string":
        return ZONED, int(digits)
    return _KINDS.get((parse, avro), (CALL, 0)) if isinstance(avro, str) else (CALL, 0)


def layout_arguments(
    plan: TableDecodePlan, shape: RecordLayout, completes: bool = False
) -> tuple[list[tuple[Any, ...]], tuple[int, ...], tuple[Any, ...]]:
    """Returns what a native layout is made from. `completes`: rows with values that were not sent are the decoder's,
    which has them read again."""
    columns = plan.table.columns
    out: list[tuple[Any, ...]] = []
    places: list[int] = []
    for parse in plan.parsers:
        if parse is None:
            out.append(SKIPPED)
            continue
        index = len(places)
        places.append(len(out))
        form = _form(columns[index], parse, shape.plan.row_writes[index], plan.stale)
        out.append(column_arguments(columns[index], index, form, shape, completes=completes))
    names = write_string(plan.table.path[0]) + write_string(plan.table.path[1])
    return out, tuple(places[i] for i in plan.table.key), place_arguments(shape, names)


def _form(column: Column, parse: Parser, write: Write, stale: set[int]) -> ColumnForm:
    kind, argument = kind_of(column, parse)
    return ColumnForm(kind, argument, _encoded(column, parse, write, stale), kind not in _NOT_PLAIN)


def _encoded(column: Column, parse: Parser, write: Write, stale: set[int]) -> Encode:
    """A whole field from its text; LookupError for a value that takes more than its field, or is another in the key."""

    def encode(text: bytes) -> bytes:
        value = parse(text)
        if stale or hasattr(value, "bounds") or (column.bound and column.bound(value) != value):
            raise LookupError("the row is the decoder's")
        return write(value)

    return encode
