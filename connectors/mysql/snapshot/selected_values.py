"""Values that a SELECT returns as texts, as the values that the log's reader returns for them; and keys as literals of statements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from cdcworker.connectors.mysql.decode.value_forms import span_text
from cdcworker.connectors.mysql.server.grants import quoted
from cdcworker.connectors.mysql.types import charsets, declared
from cdcworker.connectors.mysql.types.column import STRINGS, YEAR_2, ColumnType, TypeCode
from cdcworker.connectors.mysql.types.times import ZERO_TIMESTAMP, InvalidDate, InvalidDateTime

Convert = Callable[[bytes], Any]
TEXTS: Final = STRINGS | {TypeCode.ENUM, TypeCode.SET, TypeCode.JSON}
"""Types whose selected values are written as they are, whether texts or bytes."""
_INTEGERS: Final = frozenset(
    {TypeCode.TINY, TypeCode.SHORT, TypeCode.INT24, TypeCode.LONG, TypeCode.LONGLONG, TypeCode.YEAR, TypeCode.BIT}
)
_NUMBERS: Final = _INTEGERS | {TypeCode.NEWDECIMAL, TypeCode.FLOAT, TypeCode.DOUBLE}
_TIMESTAMPS: Final = frozenset({TypeCode.TIMESTAMP, TypeCode.TIMESTAMP2})
_DATETIMES: Final = frozenset({TypeCode.DATETIME, TypeCode.DATETIME2})
_SPANS: Final = frozenset({TypeCode.TIME, TypeCode.TIME2})


def selected(name: str, kind: ColumnType) -> str:
    """Returns the expression by which a column is selected: as it is, but for what its text would lose or its bytes would mean."""
    if kind.code is TypeCode.FLOAT:
        return f"cast({quoted(name)} as double)"
    if kind.code is TypeCode.BIT:
        return f"{quoted(name)} + 0"
    if kind.code is TypeCode.VECTOR:
        # Clients that do not know the type take it for text.
        return f"hex({quoted(name)})"
    return compared(name, kind)


def compared(name: str, kind: ColumnType) -> str:
    """Returns the expression by which a key's column is compared and sorted."""
    # The server shows two digits of such a year, and compares these with a literal though it sorts by the whole one.
    return f"year({quoted(name)})" if kind.declared == YEAR_2 else quoted(name)


def is_octets(kind: ColumnType) -> bool:
    """Returns whether the server sends a selected value as bytes that are no text."""
    if kind.code is TypeCode.GEOMETRY or kind.declared == "vector":
        return True
    return kind.code in STRINGS and kind.collation == charsets.BINARY and not kind.declared


def converter(kind: ColumnType) -> Convert:
    """Returns what makes of the bytes of a selected value the value that the log's reader returns. It raises ValueError for those of no
    value."""
    code = kind.code
    if code in _INTEGERS:
        return int
    if code in (TypeCode.FLOAT, TypeCode.DOUBLE):
        return float
    if code is TypeCode.GEOMETRY:
        return declared.geometry
    if kind.declared == "vector":
        return declared.vector
    if is_octets(kind):
        return bytes
    return _of_text(_TEXTS.get(code, str))


def _of_text(convert: Callable[[str], Any]) -> Convert:
    def converted(data: bytes) -> Any:
        return convert(data.decode())

    return converted


def _day(text: str) -> date | InvalidDate:
    year, month, day = int(text[:4]), int(text[5:7]), int(text[8:10])
    try:
        return date(year, month, day)
    except ValueError:
        return InvalidDate(year, month, day)


def _moment(text: str) -> datetime | InvalidDateTime:
    day = _day(text)
    hour, minute, second = int(text[11:13]), int(text[14:16]), int(text[17:19])
    micros = int(text[20:].ljust(6, "0")) if len(text) > 19 else 0
    if isinstance(day, InvalidDate):
        return InvalidDateTime(day, hour, minute, second, micros)
    return datetime(day.year, day.month, day.day, hour, minute, second, micros)


def _stamp(text: str) -> datetime | InvalidDateTime:
    found = _moment(text)
    return found.replace(tzinfo=UTC) if isinstance(found, datetime) else ZERO_TIMESTAMP


def _span(text: str) -> timedelta:
    hours, minutes, rest = text.lstrip("-").split(":")
    second, _, fraction = rest.partition(".")
    value = timedelta(
        hours=int(hours), minutes=int(minutes), seconds=int(second), microseconds=int(fraction.ljust(6, "0") or 0)
    )
    return -value if text.startswith("-") else value


_TEXTS: Final[Mapping[TypeCode, Callable[[str], Any]]] = {
    TypeCode.NEWDECIMAL: Decimal,
    TypeCode.VECTOR: lambda text: declared.vector(bytes.fromhex(text)),
    **dict.fromkeys((TypeCode.DATE, TypeCode.NEWDATE), _day),
    **dict.fromkeys(_DATETIMES, _moment),
    **dict.fromkeys(_TIMESTAMPS, _stamp),
    **dict.fromkeys(_SPANS, _span),
}
"""What makes a value of a text that is not the value itself."""

# -- keys -------------------------------------------------------------------------------------------------------------


def key_text(value: Any) -> str:
    """Returns a key's value as the text in which it is stored."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, timedelta):
        return span_text(value).removesuffix("Z")
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(" ")
    return str(value)


def value_of(kind: ColumnType, text: str) -> Any:
    """Returns the value of which `key_text` has made the text. Raises ValueError for a text that is none of the type."""
    return bytes.fromhex(text) if is_octets(kind) else converter(kind)(text.encode())


def literal(kind: ColumnType, text: str) -> str:
    """Returns the literal of a stored key that is compared with its column as the column is sorted. Raises ValueError for a text that
    is none of the type."""
    if kind.code in _NUMBERS:
        return _number(kind, text)
    if kind.code is TypeCode.ENUM:
        # They are sorted by their numbers.
        return str((kind.members or ()).index(text) + 1 if text else 0)
    if kind.code is TypeCode.SET:
        members = kind.members or ()
        return str(sum(1 << members.index(part) for part in text.split(",") if part))
    if is_octets(kind):
        return f"X'{bytes.fromhex(text).hex()}'" if text else "''"
    return f"_utf8mb4 X'{text.encode().hex()}'" if text else "''"


def _number(kind: ColumnType, text: str) -> str:
    if kind.code in _INTEGERS:
        return str(int(text))
    if kind.code is TypeCode.NEWDECIMAL:
        return format(Decimal(text), "f")
    return f"{float(text)!r}e0" if "e" not in text else repr(float(text))


def beyond(names: Sequence[str], values: Sequence[str], sign: str, *, last: str) -> str:
    """Returns the condition of a row beyond a key in the key's order, by its columns: indexes are not used for a comparison of whole
    rows."""
    parts = []
    for at, (name, value) in enumerate(zip(names, values, strict=True)):
        equal = [f"{names[i]} = {values[i]}" for i in range(at)]
        parts.append(" and ".join([*equal, f"{name} {last if at == len(names) - 1 else sign} {value}"]))
    bound = f"{names[0]} {sign}= {values[0]} and " if len(names) > 1 else ""
    return f"({bound}({' or '.join(f'({part})' for part in parts)}))"
