"""Arrow values to the texts that MySQL reads, whole columns at once. What MySQL cannot hold is null (a number that is none, in a
column of numbers), or the nearest that it holds (dates and times past the years 1 to 9999)."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.warehouses import arrow_types, value_text
from cdcworker.connectors.warehouses.mysql import types
from cdcworker.connectors.warehouses.source_types import TargetColumn

if TYPE_CHECKING:
    import pyarrow as pa

_WORDS: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def to_mysql(values: pa.Array, column: TargetColumn, kind: str) -> pa.Array:
    """Returns a column as an array of strings, or of bytes, for a column of the target's type `kind`."""
    import pyarrow as pa

    if pa.types.is_null(values.type):
        return pa.nulls(len(values), pa.string())
    if column.kind == "bytes":
        return values
    if column.kind in ("date", "timestamp", "iso"):
        return _moment(values, column)
    if column.kind in ("decimal", "variable_decimal", "decimal_words"):
        return _number(value_text.to_text(values, column), kind)
    if column.kind == "array":
        return _array(values, column)
    if column.kind == "duration":
        return values.cast(pa.int64()).cast(pa.string())
    return _plain(values, kind) if column.kind == "plain" else value_text.to_text(values, column)


def _moment(values: pa.Array, column: TargetColumn) -> pa.Array:
    import pyarrow as pa

    wanted = arrow_types.arrow_of(column, values.type)
    if pa.types.is_timestamp(wanted):
        # In UTC, as the sessions are: the text must not name the zone.
        zoned = arrow_types.to_arrow(values, column, wanted)
        return zoned.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.string())
    return arrow_types.to_arrow(values, column, wanted).cast(pa.string())


def _number(text: pa.Array, kind: str) -> pa.Array:
    """Decimal texts without exponents; NaN and infinities are words in texts, and null in numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if kind != types.TEXT:
        finite = pc.match_substring_regex(text, "^[-+0-9.]")
        finite = pc.and_(finite, pc.invert(pc.match_substring(text, "Inf")))
        return pc.if_else(finite, text, pa.scalar(None, pa.string()))
    if not pc.any(pc.match_substring_regex(text, "[0-9][eE]")).as_py():
        return text
    return pa.array([_without_exponent(one) for one in text.to_pylist()], pa.string())


def _without_exponent(text: str | None) -> str | None:
    return format(Decimal(text), "f") if text is not None and text[-1:].isdigit() else text


def _plain(values: pa.Array, kind: str) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_boolean(values.type):
        return values.cast(pa.int8()).cast(pa.string())
    if pa.types.is_floating(values.type):
        text = values.cast(pa.string())
        if kind == types.TEXT:
            return text
        return pc.if_else(pc.is_finite(values), text, pa.scalar(None, pa.string()))
    return values if pa.types.is_string(values.type) else values.cast(pa.string())


def _array(values: pa.Array, column: TargetColumn) -> pa.Array:
    """Each array as JSON: numbers, texts and truths as such, all else as its text."""
    import pyarrow as pa

    assert column.element is not None
    flat, element = values.flatten(), column.element
    if element.kind == "plain":
        items = [_item(one) for one in flat.to_pylist()]
    else:
        text = to_mysql(flat, element, types.TEXT)
        items = [one.hex() if isinstance(one, bytes) else one for one in text.to_pylist()]
    out: list[str | None] = []
    at = 0
    for length in (None if one is None else len(one) for one in values.to_pylist()):
        if length is None:
            out.append(None)
            continue
        out.append(json.dumps(items[at : at + length], ensure_ascii=False))
        at += length
    return pa.array(out, pa.string())


def _item(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return _WORDS[str(value)]
    return value.hex() if isinstance(value, bytes) else value
