"""Which values of row images the native core knows, and the layout of a table's rows for it."""

from __future__ import annotations

from typing import Any, Final

from cdcworker.connectors.capture.native.row_layouts import (
    CALL,
    SKIPPED,
    ColumnForm,
    column_arguments,
    place_arguments,
)
from cdcworker.connectors.mysql.binlog.table_map import TableMap
from cdcworker.connectors.mysql.decode.table_plan import Parse, TablePlan
from cdcworker.connectors.mysql.types import charsets
from cdcworker.connectors.mysql.types.column import STRINGS, ColumnType, TypeCode
from cdcworker.connectors.mysql.types.numbers import ValueReader
from cdcworker.connectors.mysql.types.readers import reader_of, width_of
from cdcworker.schemas.avro_binary import Write, write_string
from cdcworker.schemas.change import Avro
from cdcworker.schemas.record_layout import RecordLayout

(
    TEXT, ASCII, CHAR, ASCII_CHAR, BYTES, PADDED, SIGNED, UNSIGNED, UNSIGNED_BYTES, YEAR, FLOAT, DOUBLE, FLOAT_DOUBLE, DECIMAL,
    DECIMAL_TEXT, DECIMAL_DOUBLE, BIT, BITS, DATE, DATETIME, TIMESTAMP, TIME, TIME_OF_DAY, MEMBER, UUID,
) = range(2, 27)  # fmt: skip
"""As `_binary_forms.pxi` numbers them."""
_MICROS, _MILLIS, _NANOS = range(3)
_UNITS: Final = {
    "MicroTimestamp": _MICROS,
    "MicroTime": _MICROS,
    "Timestamp": _MILLIS,
    "NanoTimestamp": _NANOS,
    "NanoTime": _NANOS,
}
"""By the last word of a type's name in Connect."""
DIGITS_MAX: Final = 18
SET_MEMBERS_MAX: Final = 8
"""Of a SET all of whose values are written beforehand."""
_INTEGERS: Final = frozenset({TypeCode.TINY, TypeCode.SHORT, TypeCode.INT24, TypeCode.LONG, TypeCode.LONGLONG})
_DECIMALS: Final = {"bytes": DECIMAL, "string": DECIMAL_TEXT, "double": DECIMAL_DOUBLE}
_FIXED: Final[dict[tuple[TypeCode, str], int]] = {
    (TypeCode.FLOAT, "float"): FLOAT,
    (TypeCode.FLOAT, "double"): FLOAT_DOUBLE,
    (TypeCode.DOUBLE, "double"): DOUBLE,
    (TypeCode.YEAR, "int"): YEAR,
    (TypeCode.DATE, "int"): DATE,
    (TypeCode.NEWDATE, "int"): DATE,
}
_LENGTHS: Final[dict[tuple[TypeCode, str], int]] = {
    (TypeCode.BIT, "boolean"): BIT,
    (TypeCode.BIT, "bytes"): BITS,
    (TypeCode.TIMESTAMP2, "string"): TIMESTAMP,
}
"""Those whose argument is the length of the type."""
_COMPRESSED: Final = frozenset({TypeCode.BLOB_COMPRESSED, TypeCode.VARCHAR_COMPRESSED})
_UTF8: Final = frozenset({"utf8mb3", "utf8mb4"})
_ALL_ASCII: Final = bytes(range(128))


def kind_of(kind: ColumnType, avro: Avro) -> tuple[int, int]:
    """Returns how values of a column are read that become values of this Avro type without a mask, and the argument of that. What is
    not known is a call."""
    base, name = (avro, "") if not isinstance(avro, dict) else (avro["type"], avro.get("connect.name", ""))
    code, word = kind.code, name.rpartition(".")[2]
    if not isinstance(base, str):
        return CALL, 0
    if code in _INTEGERS:
        if base == "bytes":
            return UNSIGNED_BYTES, 0
        return (UNSIGNED if kind.is_unsigned else SIGNED), 0
    if (code, base) in _FIXED:
        return _FIXED[code, base], 0
    if (code, base) in _LENGTHS:
        return _LENGTHS[code, base], kind.length
    if code is TypeCode.NEWDECIMAL and kind.length <= DIGITS_MAX:
        return _DECIMALS[base], kind.length << 8 | kind.scale
    if code is TypeCode.DATETIME2 and word in _UNITS:
        return DATETIME, _UNITS[word]
    if code is TypeCode.TIME2 and base != "string":
        return (TIME_OF_DAY, 0) if base == "int" else (TIME, _UNITS[word])
    if code in (TypeCode.ENUM, TypeCode.SET):
        return (MEMBER, 0) if _texts(kind) is not None else (CALL, 0)
    if code in STRINGS - _COMPRESSED and not kind.declared and kind.collation is not None:
        return _string(kind, kind.collation, base)
    return (UUID, 0) if kind.declared == "uuid" and base == "string" else (CALL, 0)


def _string(kind: ColumnType, collation: int, base: str) -> tuple[int, int]:
    is_fixed = kind.code is TypeCode.STRING
    if collation == charsets.BINARY:
        if base != "bytes":
            return CALL, 0
        return (PADDED, kind.length) if is_fixed else (BYTES, 0)
    charset = charsets.charset_of(collation)
    if charset.name in _UTF8:
        return (CHAR if is_fixed else TEXT), 0
    if charset.unit == 1 and charset.decode(_ALL_ASCII).encode() == _ALL_ASCII:
        # ASCII is the same in it; what is not is decoded by the call.
        return (ASCII_CHAR if is_fixed else ASCII), 0
    return CALL, 0


def _texts(kind: ColumnType) -> tuple[str, ...] | None:
    """Returns the text of each number of an ENUM or a small SET."""
    members = kind.members
    if members is None:
        return None
    if kind.code is TypeCode.ENUM:
        return ("", *members)
    if len(members) > SET_MEMBERS_MAX:
        return None
    return tuple(
        ",".join(member for i, member in enumerate(members) if number >> i & 1) for number in range(1 << len(members))
    )


class _Encoded:
    """Encodes a whole field from a value as the log has it. `prefix`: bytes of the length that stands in front of it, and that the core
    has taken off. `texts`: the encoded values of an ENUM or a SET by their numbers."""

    __slots__ = ("_parse", "_prefix", "_read", "_write", "texts")

    def __init__(self, steps: tuple[ValueReader, Parse, Write], prefix: int = 0, texts: tuple[bytes, ...] = ()) -> None:
        self._read, self._parse, self._write = steps
        self._prefix, self.texts = prefix, texts

    def __call__(self, data: bytes) -> bytes:
        if self._prefix:
            data = len(data).to_bytes(self._prefix, "little") + data
        value, end = self._read(data, 0)
        if end != len(data):
            raise LookupError("the row is the decoder's")
        return self._write(self._parse(value))


def layout_arguments(
    logged: TableMap, plan: TablePlan, shape: RecordLayout
) -> tuple[list[int], list[tuple[Any, ...]], tuple[int, ...], tuple[Any, ...]]:
    """Returns what a native layout is made from. Raises ValueError for a table with a column whose values cannot be read."""
    table, out = plan.out, [SKIPPED] * len(logged.columns)
    for index, place in enumerate(plan.taken):
        kind = plan.types[index]
        is_own = index not in plan.masked
        native, argument = kind_of(kind, table.columns[index].type) if is_own else (CALL, 0)
        texts = tuple(map(write_string, _texts(kind) or ())) if native == MEMBER else ()
        prefix = 0 if native == CALL else max(-width_of(kind), 0)
        call = _Encoded((reader_of(kind), plan.parsers[index], shape.plan.row_writes[index]), prefix, texts)
        out[place] = column_arguments(table.columns[index], index, ColumnForm(native, argument, call), shape)
    return widths_of(logged), out, tuple(plan.taken[i] for i in table.key), place_arguments(shape)


def widths_of(logged: TableMap) -> list[int]:
    """Returns by column the bytes of its values; below 0 how many bytes of length stand in front of them. Raises ValueError."""
    return [width_of(column.type) for column in logged.columns]
