"""A column's type as a table map gives it: the code, its metadata, and what the optional metadata add."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from cdcworker.connectors.mysql.errors import MalformedError, UnknownTypeError


class TypeCode(IntEnum):
    """The type codes of table maps, by the names that both servers use."""

    DECIMAL = 0
    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    NULL = 6
    TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    TIME = 11
    DATETIME = 12
    YEAR = 13
    NEWDATE = 14
    VARCHAR = 15
    BIT = 16
    TIMESTAMP2 = 17
    DATETIME2 = 18
    TIME2 = 19
    BLOB_COMPRESSED = 140
    VARCHAR_COMPRESSED = 141
    VECTOR = 242
    JSON = 245
    NEWDECIMAL = 246
    ENUM = 247
    SET = 248
    TINY_BLOB = 249
    MEDIUM_BLOB = 250
    LONG_BLOB = 251
    BLOB = 252
    VAR_STRING = 253
    STRING = 254
    GEOMETRY = 255


NUMBERS: Final = frozenset(
    {
        *(TypeCode.TINY, TypeCode.SHORT, TypeCode.INT24, TypeCode.LONG, TypeCode.LONGLONG),
        *(TypeCode.FLOAT, TypeCode.DOUBLE, TypeCode.NEWDECIMAL, TypeCode.YEAR),
    }
)
"""Types that have a sign in a table map, YEAR among them, which never is negative."""
STRINGS: Final = frozenset(
    {
        *(TypeCode.STRING, TypeCode.VAR_STRING, TypeCode.VARCHAR, TypeCode.VARCHAR_COMPRESSED),
        *(TypeCode.BLOB, TypeCode.BLOB_COMPRESSED),
    }
)
"""Strings of text and of bytes."""
LARGE: Final = frozenset(
    {
        *(TypeCode.TINY_BLOB, TypeCode.MEDIUM_BLOB, TypeCode.LONG_BLOB, TypeCode.BLOB, TypeCode.BLOB_COMPRESSED),
        *(TypeCode.JSON, TypeCode.GEOMETRY, TypeCode.VECTOR),
    }
)
"""Values that binlog_row_image = NOBLOB leaves out where they are not changed."""
_ONE_BYTE: Final = frozenset(
    {
        *(TypeCode.FLOAT, TypeCode.DOUBLE, TypeCode.BLOB, TypeCode.BLOB_COMPRESSED, TypeCode.GEOMETRY, TypeCode.JSON),
        *(TypeCode.VECTOR, TypeCode.TIMESTAMP2, TypeCode.DATETIME2, TypeCode.TIME2),
        *(TypeCode.TINY_BLOB, TypeCode.MEDIUM_BLOB, TypeCode.LONG_BLOB),
    }
)
_TWO_BYTES_LITTLE: Final = frozenset({TypeCode.VARCHAR, TypeCode.VARCHAR_COMPRESSED, TypeCode.BIT, TypeCode.VAR_STRING})
_REAL_TYPE_FIRST: Final = frozenset({TypeCode.STRING, TypeCode.VAR_STRING, TypeCode.ENUM, TypeCode.SET})
_WIDE: Final = 0x30
"""Bits of a string's first metadata byte that are set, unless they hold the two highest bits of its length, inverted."""
YEAR_2: Final = "year(2)"
"""MariaDB's YEAR of which two digits are shown."""


class ColumnType(NamedTuple):
    """What is known of a column's values. None stands for what a table map has not said."""

    code: TypeCode
    length: int = 0
    """The metadata's number: bytes of a string, bytes of a blob's length, digits of a fraction, bits of a BIT, precision."""
    scale: int = 0
    """Digits after the point of a decimal."""
    is_unsigned: bool | None = None
    collation: int | None = None
    members: tuple[str, ...] | None = None
    """Of an ENUM or a SET, in the order of the definition."""
    declared: str = ""
    """What the catalog calls the type where a table map does not tell it apart: `uuid`, `inet4`, `inet6`, `vector`
    or `year(2)` of MariaDB."""


def read_type(code: int, metadata: bytes, at: int) -> tuple[ColumnType, int]:
    """Returns the type that a code and its metadata tell, and the offset after the metadata."""
    try:
        known = TypeCode(code)
    except ValueError:
        raise UnknownTypeError(f"type code {code}") from None
    if known in _ONE_BYTE:
        return ColumnType(known, metadata[at]), at + 1
    if known in _TWO_BYTES_LITTLE and known is not TypeCode.VAR_STRING:
        length = metadata[at] | metadata[at + 1] << 8
        if known is TypeCode.BIT:
            length = (length >> 8) * 8 + (length & 0xFF)
            if not 1 <= length <= 64:
                raise MalformedError("a BIT column of an impossible width")
        return ColumnType(known, length), at + 2
    if known is TypeCode.NEWDECIMAL:
        return _decimal(metadata[at], metadata[at + 1]), at + 2
    if known in _REAL_TYPE_FIRST:
        return _string(metadata[at], metadata[at + 1]), at + 2
    return ColumnType(known), at


def _decimal(precision: int, scale: int) -> ColumnType:
    if not 1 <= precision <= 65 or scale > min(precision, 38):
        raise MalformedError("a decimal column of an impossible precision or scale")
    return ColumnType(TypeCode.NEWDECIMAL, precision, scale)


def _string(first: int, second: int) -> ColumnType:
    """The first byte holds the real type, and with two of its bits inverted the upper bits of a length above 255."""
    if first & _WIDE != _WIDE:
        code, length = first | _WIDE, second | ((first & _WIDE) ^ _WIDE) << 4
    else:
        code, length = first, second
    if code not in (TypeCode.STRING, TypeCode.ENUM, TypeCode.SET, TypeCode.VAR_STRING):
        raise MalformedError("a string column of an unknown real type")
    if code == TypeCode.ENUM and length not in (1, 2):
        raise MalformedError("an ENUM column of an impossible width")
    if code == TypeCode.SET and length not in (1, 2, 3, 4, 8):
        raise MalformedError("a SET column of an impossible width")
    return ColumnType(TypeCode(code), length)
