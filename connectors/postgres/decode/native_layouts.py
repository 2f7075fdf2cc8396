"""Which parsers the native core knows, and the layout of a table's rows for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from cdcworker.connectors.capture.column_mapping import Parser
from cdcworker.connectors.postgres.decode.table_plan import TableDecodePlan
from cdcworker.connectors.postgres.types import bounded_values as bounded
from cdcworker.connectors.postgres.types import text_values as v
from cdcworker.schemas.avro_binary import Write, write_string
from cdcworker.schemas.change import Column
from cdcworker.schemas.placeholders import unavailable_value
from cdcworker.schemas.record_layout import RecordLayout

SKIP, CALL, TEXT, INT, LONG, BOOLEAN, FLOAT, DOUBLE, HEX, DECIMAL, VARIABLE, DATE, TIME, TIMESTAMP, ZONED, DIGITS = (
    range(16)
)
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
UNSENT: Final = 6
"""Where a column's arguments hold what is written for a value that was not sent."""
_SIZE_MAX: Final = 1 << 62


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
    made, columns = shape.plan, plan.table.columns
    out: list[tuple[Any, ...]] = []
    places: list[int] = []
    for parse in plan.parsers:
        if parse is None:
            out.append((SKIP, 0, None, False, None, None, None, 0))
            continue
        index = len(places)
        places.append(len(out))
        made_column = _column(columns[index], parse, index, (plan, shape))
        out.append((*made_column[:UNSENT], None, *made_column[UNSENT + 1 :]) if completes else made_column)
    place = (
        made.topic,
        made.value_frame[:1] + made.key_id.to_bytes(4, "big"),
        made.value_frame,
        shape.partitions,
        min(shape.record_bytes_max, _SIZE_MAX),
        shape.tombstones,
        write_string(plan.table.path[0]) + write_string(plan.table.path[1]),
    )
    return out, tuple(places[i] for i in plan.table.key), place


def _column(column: Column, parse: Parser, index: int, of: tuple[TableDecodePlan, RecordLayout]) -> tuple[Any, ...]:
    plan, shape = of
    write, image = shape.plan.row_writes[index], shape.plan.image_writes[index]
    kind, argument = kind_of(column, parse)
    # A union with null has one byte that says which.
    some = None if not column.optional else 2 - write(None)[0]
    zero = None if column.optional else image(None)
    unsent = _tried(lambda: write(unavailable_value(column, shape.unavailable)))
    return kind, argument, some, kind not in _NOT_PLAIN, _encoded(column, parse, write, plan.stale), zero, unsent, index


def _encoded(column: Column, parse: Parser, write: Write, stale: set[int]) -> Callable[[bytes], bytes]:
    """A whole field from its text; LookupError for a value that takes more than its field, or is another in the key."""

    def encode(text: bytes) -> bytes:
        value = parse(text)
        if stale or hasattr(value, "bounds") or (column.bound and column.bound(value) != value):
            raise LookupError("the row is the decoder's")
        return write(value)

    return encode


def _tried(make: Callable[[], bytes]) -> bytes | None:
    try:
        return make()
    except (TypeError, ValueError, AttributeError, LookupError):
        return None
