"""Arrow values to the text that PostgreSQL's COPY reads; whole columns at once, one by one only for what is rare."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.arrow.decode import native
from cdcworker.connectors.warehouses.source_types import TargetColumn

if TYPE_CHECKING:
    import pyarrow as pa

DAY_US = 86_400_000_000
# What Arrow prints and PostgreSQL reads alike: years 1 to 9999.
DAYS_MIN, DAYS_MAX = -719_162, 2_932_896
US_MIN, US_MAX = DAYS_MIN * DAY_US, (DAYS_MAX + 1) * DAY_US - 1
# PostgreSQL's own range; values outside of it encode infinity, by their sign.
PG_DAYS_MIN, PG_DAYS_MAX = -2_440_588, 2_145_042_905
PG_US_MIN, PG_US_MAX = -210_866_803_200_000_000, 9_223_372_036_825_199_999
DURATION_INFINITY = 2**63 - 1
VARIABLE_SPECIAL = {0: "NaN", 1: "Infinity", -1: "-Infinity"}
SPECIAL_DECIMALS = {"NAN": "NaN", "POSITIVE_INFINITY": "Infinity", "NEGATIVE_INFINITY": "-Infinity"}


def to_copy(values: pa.Array, column: TargetColumn) -> pa.Array:
    """Returns the column as an Arrow array whose CSV form is the text of `column.type`; `column.kind` says how values are converted."""
    convert = _CONVERT.get(column.kind)
    return values if convert is None else convert(values, column)


def to_text(values: pa.Array, column: TargetColumn) -> pa.Array:
    """Returns values as the text that the target takes, as an array of strings."""
    import pyarrow as pa

    return to_copy(values, column).cast(pa.string())


def _one_by_one(values: pa.Array, function: Callable[[Any], str]) -> pa.Array:
    import pyarrow as pa

    return pa.array([None if value is None else function(value) for value in values.to_pylist()], pa.string())


# -- bytes --------------------------------------------------------------------------------------------------------------


def offsets_and_data(values: pa.Array) -> tuple[Any, Any]:
    """Returns the offsets and the bytes of a binary array, with its slice taken into account."""
    import numpy as np

    _, ends, data = values.buffers()
    offsets = np.frombuffer(ends, np.int32, len(values) + 1, values.offset * 4)
    return offsets, (data if data is not None else b"")


def bytea_text(values: pa.Array) -> pa.Array:
    r"""Returns bytes as `\x…`, which bytea reads."""
    import pyarrow as pa

    module = native()
    found = (
        module.hexes(offsets_and_data(values)[1], offsets_and_data(values)[0])
        if module is not None and len(values)
        else None
    )
    if found is None:
        return _one_by_one(values, lambda value: "\\x" + value.hex())
    mask = None if values.null_count == 0 else values.is_valid().buffers()[1]
    return pa.Array.from_buffers(pa.string(), len(values), [mask, pa.py_buffer(found[0]), pa.py_buffer(found[1])])


def _bytes(values: pa.Array, column: TargetColumn) -> pa.Array:
    return bytea_text(values)


def _bits(values: pa.Array, column: TargetColumn) -> pa.Array:
    fixed = column.unit if column.type.startswith("bit(") else 0

    def text(value: bytes) -> str:
        number = int.from_bytes(value, "little")
        return format(number, f"0{fixed}b") if fixed else format(number, "b") if number else ""

    return _one_by_one(values, text)


# -- numbers ------------------------------------------------------------------------------------------------------------


def decimal_text(unscaled: bytes, scale: int) -> str:
    if not unscaled:
        return "NaN"
    return (
        f"{int.from_bytes(unscaled, 'big', signed=True)}e{-scale}"
        if scale
        else str(int.from_bytes(unscaled, "big", signed=True))
    )


def _decimal(values: pa.Array, column: TargetColumn) -> pa.Array:
    return decimals(values, column.unit)


def decimals(values: pa.Array, scale: int) -> pa.Array:
    """Two's complement bytes as decimal text. Empty bytes stand for NaN."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = decimal_numbers(values, scale)
    if found is None:
        return _one_by_one(values, lambda value: decimal_text(value, scale))
    nan = pc.equal(pc.binary_length(values), 0)
    text = found.cast(pa.string())
    return pc.if_else(nan, pa.scalar("NaN"), text) if pc.any(nan).as_py() else text


def decimal_numbers(values: pa.Array, scale: int) -> pa.Array | None:
    """Returns decimals as Arrow's decimal128, NaN as an arbitrary value. None when a value may be longer than 38 digits or the native core
    is missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    module = native()
    longest = pc.max(pc.binary_length(values)).as_py()
    if module is None or longest is None or longest > 15 or not 0 <= scale <= 38:
        return None
    ends, data = offsets_and_data(values)
    mask = None if values.null_count == 0 else values.is_valid().buffers()[1]
    kind = pa.decimal128(38, scale)
    return pa.Array.from_buffers(kind, len(values), [mask, pa.py_buffer(module.decimals(data, ends))])


def _variable_decimal(values: pa.Array, column: TargetColumn) -> pa.Array:
    """Each scale as a column of its own; there are few."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    scales = values.field(values.type.get_field_index("scale"))
    unscaled = values.field(values.type.get_field_index("value"))
    present = values.is_valid()
    special = pc.and_(present, pc.fill_null(pc.equal(pc.binary_length(unscaled), 0), False))
    out = np.full(len(values), None, object)
    for scale in pc.unique(pc.if_else(present, scales, pa.scalar(None, pa.int32()))).drop_null().to_pylist():
        rows = np.flatnonzero(pc.and_(present, pc.fill_null(pc.equal(scales, scale), False)).to_numpy(False))
        out[rows] = decimals(unscaled.take(pa.array(rows)), scale).to_pylist()
    for row in np.flatnonzero(special.to_numpy(False)):
        out[row] = VARIABLE_SPECIAL.get(scales[int(row)].as_py(), "NaN")
    return pa.array(out, pa.string())


def _decimal_words(values: pa.Array, column: TargetColumn) -> pa.Array:
    import pyarrow.compute as pc

    if not pc.any(pc.match_substring_regex(values, "^[NP]")).as_py():
        return values
    return _one_by_one(values, lambda value: SPECIAL_DECIMALS.get(value, value))


# -- dates and times ----------------------------------------------------------------------------------------------------


def date_of_day_number(days: int) -> tuple[int, int, int]:
    """Year, month, day of a day number since 1970-01-01, proleptic Gregorian; year 0 is 1 BC."""
    days += 719_468
    era, day_of_era = divmod(days, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    year = year_of_era + era * 400 + (month <= 2)
    return year, month, day_of_year - (153 * shifted + 2) // 5 + 1


def date_text(days: int) -> str:
    if not PG_DAYS_MIN <= days <= PG_DAYS_MAX:
        return "infinity" if days > 0 else "-infinity"
    year, month, day = date_of_day_number(days)
    return f"{year if year > 0 else 1 - year:04d}-{month:02d}-{day:02d}" + ("" if year > 0 else " BC")


def timestamp_text(us: int) -> str:
    if not PG_US_MIN <= us <= PG_US_MAX:
        return "infinity" if us > 0 else "-infinity"
    days, rest = divmod(us, DAY_US)
    date, _, bc = date_text(days).partition(" ")
    return f"{date} {time_text(rest)}" + (" BC" if bc else "")


def time_text(us: int) -> str:
    seconds, micro = divmod(us, 1_000_000)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{micro:06d}"


def _within(values: pa.Array, low: int, high: int) -> bool:
    import pyarrow.compute as pc

    found = pc.min_max(values).as_py()
    return found["min"] is None or (found["min"] >= low and found["max"] <= high)


def _date(values: pa.Array, column: TargetColumn) -> pa.Array:
    import pyarrow as pa

    return values.view(pa.date32()) if _within(values, DAYS_MIN, DAYS_MAX) else _one_by_one(values, date_text)


def _micros(values: pa.Array, unit_ns: int) -> pa.Array:
    """Whole microseconds: what PostgreSQL holds."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = values.cast(pa.int64())
    if unit_ns == 1:
        rest = pc.divide(values, 1000)  # towards zero; before 1970 the next lower one is meant
        return pc.if_else(pc.less(values, pc.multiply(rest, 1000)), pc.subtract(rest, 1), rest)
    return values if unit_ns == 1000 else pc.multiply(values, unit_ns // 1000)


def _time(values: pa.Array, column: TargetColumn) -> pa.Array:
    import pyarrow as pa

    micros = _micros(values, column.unit)
    return micros.view(pa.time64("us")) if _within(micros, 0, DAY_US - 1) else _one_by_one(micros, time_text)


def _timestamp(values: pa.Array, column: TargetColumn) -> pa.Array:
    import pyarrow as pa

    limit = 2**63 // max(1, column.unit // 1000)
    if not _within(values, -limit + 1, limit - 1):
        factor = max(1, column.unit // 1000)
        return _one_by_one(values, lambda value: timestamp_text(value * factor))
    micros = _micros(values, column.unit)
    text = micros.view(pa.timestamp("us")) if _within(micros, US_MIN, US_MAX) else _one_by_one(micros, timestamp_text)
    return _zoned(text) if column.type.endswith("with time zone") else text


def _zoned(values: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    text = values.cast(pa.string())
    finite = pc.invert(pc.match_substring(text, "infinity"))
    return pc.if_else(finite, pc.binary_join_element_wise(text, "+00", ""), text)


_ISO = re.compile(r"([+-])(\d{4,})(-\d\d-\d\d)(?:(T)([^Z]*))?(Z?)")


def iso_text(value: str) -> str:
    """ISO 8601 with a sign before the year as PostgreSQL reads it."""
    found = _ISO.fullmatch(value)
    if not found:
        return value
    sign, year, rest, _, time, zone = found.groups()
    number = -int(year) if sign == "-" else int(year)
    date = f"{number if number > 0 else 1 - number:04d}{rest}"
    return (
        f"{date} {time}{zone}".rstrip() + (" BC" if number <= 0 else "")
        if time
        else date + (" BC" if number <= 0 else "")
    )


def _iso(values: pa.Array, column: TargetColumn) -> pa.Array:
    import pyarrow.compute as pc

    date = column.type == "date"
    if date or pc.any(pc.match_substring_regex(values, "^[+-]")).as_py():
        # An IsoDate ends in a zone mark, which a date does not read.
        return _one_by_one(values, lambda value: iso_text(value.removesuffix("Z") if date else value))
    return values


def _duration(values: pa.Array, column: TargetColumn) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not _within(values, -DURATION_INFINITY, DURATION_INFINITY - 1):
        special = {DURATION_INFINITY: "infinity", -DURATION_INFINITY - 1: "-infinity"}
        return _one_by_one(values, lambda value: special.get(value) or f"{value} microseconds")
    return pc.binary_join_element_wise(values.cast(pa.string()), "microseconds", " ")


# -- nested types -----------------------------------------------------------------------------------------------------------


def _point(values: pa.Array, column: TargetColumn) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    x, y = (values.field(values.type.get_field_index(name)).cast(pa.string()) for name in ("x", "y"))
    text = pc.binary_join_element_wise(
        pc.binary_join_element_wise("(", x, ""), pc.binary_join_element_wise(y, ")", ""), ","
    )
    return pc.if_else(values.is_valid(), text, pa.scalar(None, pa.string()))


def _array(values: pa.Array, column: TargetColumn) -> pa.Array:
    """`{1,NULL,"a b"}`: the elements as one column, joined per list."""
    import pyarrow as pa
    import pyarrow.compute as pc

    assert column.element is not None
    text = to_text(values.flatten(), column.element)
    if not _bare(column.element.type):
        text = pc.replace_substring_regex(text, r'(["\\])', r"\\\1")
        text = pc.binary_join_element_wise('"', text, '"', "")
    text = pc.fill_null(text, "NULL")
    lengths = pc.fill_null(pc.list_value_length(values), 0)
    ends = pc.cumulative_sum(lengths.cast(pa.int32()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, text), ",")
    braced = pc.binary_join_element_wise("{", joined, "}", "")
    return pc.if_else(values.is_valid(), braced, pa.scalar(None, pa.string()))


def _bare(type_: str) -> bool:
    """Types whose text needs no quotes inside an array."""
    return type_ in ("boolean", "smallint", "integer", "bigint", "real", "double precision", "uuid", "date") or (
        type_.startswith("numeric")
    )


def _json(values: pa.Array, column: TargetColumn) -> pa.Array:
    import pyarrow as pa

    if pa.types.is_string(values.type):
        return values

    def plain(value: Any) -> Any:
        return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)

    def text(value: Any) -> str:
        return json.dumps(dict(value) if pa.types.is_map(values.type) else value, default=plain, ensure_ascii=False)

    return _one_by_one(values, text)


_CONVERT: dict[str, Callable[[Any, TargetColumn], Any]] = {
    "bytes": _bytes,
    "bits": _bits,
    "decimal": _decimal,
    "variable_decimal": _variable_decimal,
    "decimal_words": _decimal_words,
    "date": _date,
    "time": _time,
    "timestamp": _timestamp,
    "iso": _iso,
    "duration": _duration,
    "point": _point,
    "array": _array,
    "json": _json,
}
