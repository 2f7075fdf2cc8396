"""From a column's type to the reader of its values: one look-up per column, then one call per value."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from cdcworker.connectors.mysql.errors import MalformedError, MissingMetadataError, UnknownTypeError
from cdcworker.connectors.mysql.types import charsets, declared, json_diff, json_text, numbers, strings, times
from cdcworker.connectors.mysql.types.column import STRINGS, ColumnType, TypeCode
from cdcworker.connectors.mysql.types.numbers import ValueReader
from cdcworker.connectors.mysql.types.strings import Decode

_INTEGERS: Final = {TypeCode.TINY: 1, TypeCode.SHORT: 2, TypeCode.INT24: 3, TypeCode.LONG: 4, TypeCode.LONGLONG: 8}
_PLAIN: Final[dict[TypeCode, ValueReader]] = {
    TypeCode.FLOAT: numbers.float32,
    TypeCode.DOUBLE: numbers.float64,
    TypeCode.YEAR: numbers.year,
    TypeCode.DATE: times.day,
    TypeCode.NEWDATE: times.day,
    TypeCode.TIMESTAMP: times.timestamp,
    TypeCode.DATETIME: times.datetime1,
    TypeCode.TIME: times.time1,
}
_BY_DIGITS: Final = {
    TypeCode.DATETIME2: times.datetime2,
    TypeCode.TIMESTAMP2: times.timestamp2,
    TypeCode.TIME2: times.time2,
}
_BY_PREFIX: Final[dict[TypeCode, Decode]] = {
    TypeCode.JSON: json_text.to_text,
    TypeCode.GEOMETRY: declared.geometry,
    TypeCode.VECTOR: declared.vector,
}
_DECLARED: Final[dict[str, Decode]] = {
    "inet4": declared.inet4,
    "inet6": declared.inet6,
    "uuid": declared.uuid,
    "vector": declared.vector,
}
"""Types by the catalog's name, where a table map says that they are binary strings."""
_SHORT_STRING_MAX: Final = 255
"""Bytes of the longest string whose length takes one byte."""
BLOB_PREFIX_MAX: Final = 4


@lru_cache(4096)
def reader_of(column: ColumnType) -> ValueReader:
    """Returns the reader of a column's values. Raises MissingMetadataError for what has to be known first, UnknownTypeError, and
    MalformedError for a type that cannot be."""
    code = column.code
    if code in _INTEGERS:
        if column.is_unsigned is None:
            raise MissingMetadataError("whether an integer has a sign")
        return numbers.integer(_INTEGERS[code], unsigned=column.is_unsigned)
    if code in _PLAIN:
        return _PLAIN[code]
    if code in _BY_DIGITS:
        return _BY_DIGITS[code](column.length)
    if code is TypeCode.NEWDECIMAL:
        return numbers.decimal(column.length, column.scale)
    if code is TypeCode.BIT:
        return numbers.bits(column.length)
    if code in (TypeCode.ENUM, TypeCode.SET):
        return _of_members(column)
    if code in _BY_PREFIX:
        return strings.prefixed(_prefix(column.length), _BY_PREFIX[code])
    if code in STRINGS:
        return _of_text(column)
    raise UnknownTypeError(f"type {code.name}")


_WIDTHS: Final = {
    **_INTEGERS,
    TypeCode.FLOAT: 4,
    TypeCode.DOUBLE: 8,
    TypeCode.YEAR: 1,
    TypeCode.DATE: 3,
    TypeCode.NEWDATE: 3,
    TypeCode.TIMESTAMP: 4,
    TypeCode.DATETIME: 8,
    TypeCode.TIME: 3,
}
_BEFORE_FRACTION: Final = {TypeCode.DATETIME2: 5, TypeCode.TIMESTAMP2: 4, TypeCode.TIME2: 3}
"""Bytes of the whole seconds."""


def width_of(column: ColumnType) -> int:
    """Returns the bytes of a column's values; of those whose length stands in front of them, the bytes of the length, below 0. Raises
    as `reader_of` does."""
    code = column.code
    if code in _WIDTHS:
        return _WIDTHS[code]
    if code in _BEFORE_FRACTION:
        return _BEFORE_FRACTION[code] + times.fraction(column.length)[0]
    if code is TypeCode.NEWDECIMAL:
        return numbers.decimal_bytes(column.length, column.scale)
    if code is TypeCode.BIT:
        return (column.length + 7) // 8
    if code in (TypeCode.ENUM, TypeCode.SET):
        return column.length
    if code in _BY_PREFIX or code in (TypeCode.BLOB, TypeCode.BLOB_COMPRESSED):
        return -_prefix(column.length)
    if code in STRINGS:
        return -_string_prefix(column.length)
    raise UnknownTypeError(f"type {code.name}")


@lru_cache(16)
def diff_reader(prefix: int) -> ValueReader:
    """Returns the reader of a JSON column that was logged in part."""
    return strings.prefixed(_prefix(prefix), json_diff.read_diff)


def _of_members(column: ColumnType) -> ValueReader:
    if column.members is None:
        raise MissingMetadataError("the members of an ENUM or a SET")
    make = strings.enum if column.code is TypeCode.ENUM else strings.set_
    return make(column.length, column.members)


def _of_text(column: ColumnType) -> ValueReader:
    decode = _decode(column)
    if column.code in (TypeCode.BLOB_COMPRESSED, TypeCode.VARCHAR_COMPRESSED):
        decode = strings.inflated(decode)
    if column.code in (TypeCode.BLOB, TypeCode.BLOB_COMPRESSED):
        return strings.prefixed(_prefix(column.length), decode)
    return strings.prefixed(_string_prefix(column.length), decode)


def _string_prefix(length: int) -> int:
    return 1 if length <= _SHORT_STRING_MAX else 2


def _decode(column: ColumnType) -> Decode:
    if column.declared:
        found = _DECLARED.get(column.declared)
        if found is None:
            raise UnknownTypeError(f"type {column.declared}")
        return found
    if column.collation is None:
        raise MissingMetadataError("the character set of a string")
    is_fixed = column.code is TypeCode.STRING
    if column.collation == charsets.BINARY:
        return strings.padded(column.length) if is_fixed else strings.same
    charset = charsets.charset_of(column.collation)
    return _without_padding(charset) if is_fixed else charset.decode


def _without_padding(charset: charsets.Charset) -> Callable[[bytes], str]:
    """Returns what decodes a CHAR: without the blanks at its end, of which the log may have cut one in the middle."""
    decode, unit = charset.decode, charset.unit

    def decode_char(value: bytes) -> str:
        whole = len(value) - len(value) % unit
        return decode(value[:whole]).rstrip(" ")

    return decode_char


def _prefix(size: int) -> int:
    if not 1 <= size <= BLOB_PREFIX_MAX:
        raise MalformedError("a length of an impossible width")
    return size
