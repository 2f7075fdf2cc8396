"""MySQL's binary JSON as the JSON text that the server prints."""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Final

from cdcworker.connectors.mysql.errors import MalformedError, UndecodableError
from cdcworker.connectors.mysql.types import numbers, times
from cdcworker.connectors.mysql.types.column import TypeCode

DEPTH_MAX: Final = 100
"""MySQL's own limit on nested documents."""
_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = range(5)
_INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING = range(5, 13)
_OPAQUE: Final = 15
_LITERALS: Final = ("null", "true", "false")
_SIZES: Final = {
    _INT16: (2, True),
    _UINT16: (2, False),
    _INT32: (4, True),
    _UINT32: (4, False),
    _INT64: (8, True),
    _UINT64: (8, False),
}
"""By type of a number: its bytes, and whether it has a sign."""
_TEMPORAL: Final = frozenset({TypeCode.DATE, TypeCode.TIME, TypeCode.DATETIME, TypeCode.TIMESTAMP})
"""Types of an opaque value that hold the packed form of a date or time."""


def to_text(document: bytes) -> str:
    """Returns the JSON text of a binary document. An empty one is the `null` that a column gets where its value was not valid.
    Raises MalformedError, or UndecodableError for text that is not UTF-8."""
    if not document:
        return "null"
    return _Printer(len(document)).value(memoryview(document), document[0], 1, 0)


class _Printer:
    """Prints one document. Places may point to the same bytes again and again, so what is printed is counted: no byte of a
    genuine document is printed twice."""

    def __init__(self, size: int) -> None:
        self._left = size

    def value(self, data: memoryview, kind: int, at: int, depth: int) -> str:
        """Returns the text of the value of a kind whose bytes begin at `at`."""
        if kind <= _LARGE_ARRAY:
            return self._container(data, kind, at, depth)
        if kind == _LITERAL:
            return _literal(_number(data, at, 1))
        if kind in _SIZES:
            size, signed = _SIZES[kind]
            return str(int.from_bytes(_bytes(data, at, size), "little", signed=signed))
        if kind == _DOUBLE:
            return double_text(struct.unpack("<d", _bytes(data, at, 8))[0])
        if kind == _STRING:
            return quoted(self._text(data, at))
        if kind == _OPAQUE:
            return _opaque(_number(data, at, 1), self._text(data, at + 1))
        raise MalformedError("JSON has a value of an unknown type")

    def _container(self, data: memoryview, kind: int, at: int, depth: int) -> str:
        """An object or an array: the count of its elements, its size, the keys' places, the values' kinds and places; offsets
        are from its own beginning."""
        if depth > DEPTH_MAX:
            raise MalformedError("JSON is nested too deeply")
        wide = 4 if kind in (_LARGE_OBJECT, _LARGE_ARRAY) else 2
        is_object = kind in (_SMALL_OBJECT, _LARGE_OBJECT)
        count, size = _number(data, at, wide), _number(data, at + wide, wide)
        entries = 2 * wide + count * (wide + 2) * is_object
        if at + size > len(data) or entries + count * (1 + wide) > size:
            raise MalformedError("JSON has a container that is larger than its bytes")
        self._spend(entries + count * (1 + wide))
        body = data[at : at + size]
        values = [self._entry(body, entries + i * (1 + wide), wide, depth + 1) for i in range(count)]
        if not is_object:
            return f"[{', '.join(values)}]"
        keys = [self._key(body, 2 * wide + i * (wide + 2), wide) for i in range(count)]
        return "{" + ", ".join(f"{key}: {value}" for key, value in zip(keys, values, strict=True)) + "}"

    def _key(self, body: memoryview, at: int, wide: int) -> str:
        size = _number(body, at + wide, 2)
        self._spend(size)
        return quoted(_bytes(body, _number(body, at, wide), size))

    def _entry(self, body: memoryview, at: int, wide: int, depth: int) -> str:
        """Returns the text of the value that an entry holds, or whose place it holds."""
        kind = body[at]
        if kind == _LITERAL:
            return _literal(_number(body, at + 1, wide))
        if kind in _SIZES and _SIZES[kind][0] <= wide:
            size, signed = _SIZES[kind]
            return str(int.from_bytes(body[at + 1 : at + 1 + size], "little", signed=signed))
        return self.value(body, kind, _number(body, at + 1, wide), depth)

    def _text(self, data: memoryview, at: int) -> bytes:
        size, at = _length(data, at)
        self._spend(size)
        return _bytes(data, at, size)

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise MalformedError("JSON has parts that overlap")


def _literal(number: int) -> str:
    if number >= len(_LITERALS):
        raise MalformedError("JSON has an unknown literal")
    return _LITERALS[number]


def _opaque(code: int, value: bytes) -> str:
    if code == TypeCode.NEWDECIMAL and len(value) >= 2:
        precision, scale = value[0], value[1]
        if not 1 <= precision <= 65 or scale > min(precision, 38):
            raise MalformedError("JSON has a decimal of an impossible precision")
        return str(_plain(_whole(numbers.decimal(precision, scale), value, 2)))
    if code in _TEMPORAL and len(value) == 8:
        return f'"{_temporal(code, int.from_bytes(value, "little", signed=True))}"'
    # What has no JSON form of its own is printed so by the server too.
    from base64 import b64encode

    return f'"base64:type{code}:{b64encode(value).decode()}"'


def _whole(read: Callable[[bytes, int], tuple[Decimal, int]], value: bytes, at: int) -> Decimal:
    found, end = read(value, at)
    if end != len(value):
        raise MalformedError("JSON has a decimal of a wrong length")
    return found


def _plain(number: Decimal) -> str:
    return format(number, "f")


def _temporal(code: int, packed: int) -> str:
    """Returns the text of a date or time in the packed form that memory has: 24 bits of microseconds below it."""
    sign, packed = ("-", -packed) if packed < 0 else ("", packed)
    micros, packed = packed & 0xFFFFFF, packed >> 24
    time = f"{packed >> 12 & 31:02}:{packed >> 6 & 63:02}:{packed & 63:02}.{micros:06}"
    if code == TypeCode.TIME:
        return f"{sign}{packed >> 12 & 0x3FF:02}{time[2:]}"
    year, month = divmod(packed >> 22, 13)
    day = times.InvalidDate(year, month, packed >> 17 & 31)
    return str(day) if code == TypeCode.DATE else f"{day} {time}"


def double_text(value: float) -> str:
    """Returns the shortest text that is the same number again. Where MySQL changes to an exponent is its own affair, so texts
    may differ, numbers do not."""
    text = repr(value)
    if text in ("inf", "-inf", "nan"):
        raise MalformedError("JSON has a number that is none")
    return text


def quoted(text: bytes) -> str:
    try:
        return encode_basestring(text.decode())
    except UnicodeDecodeError:
        raise UndecodableError("JSON has text that is not UTF-8") from None


def _length(data: memoryview, at: int) -> tuple[int, int]:
    """Reads a length of seven bits a byte; returns it and the offset after it."""
    length = 0
    for i in range(5):
        byte = _number(data, at + i, 1)
        length |= (byte & 0x7F) << 7 * i
        if not byte & 0x80:
            return length, at + i + 1
    raise MalformedError("JSON has a length without end")


def _number(data: memoryview, at: int, size: int) -> int:
    return int.from_bytes(_bytes(data, at, size), "little")


def _bytes(data: memoryview, at: int, size: int) -> bytes:
    found = bytes(data[at : at + size])
    if len(found) != size:
        raise MalformedError("JSON is cut short")
    return found
