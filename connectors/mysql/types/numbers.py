"""Numbers of row images: integers, floats, decimals, BIT and YEAR."""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from cdcworker.connectors.mysql.errors import MalformedError

ValueReader = Callable[[bytes, int], tuple[Any, int]]
"""From a row image and the offset of a value to the value and the offset after it. A read past the end may give any value: who
reads a row compares the last offset with the row's end."""

_DIGITS: Final = 9
"""Decimal digits that a decimal packs into four bytes."""
_BYTES_OF_DIGITS: Final = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")


def integer(size: int, *, unsigned: bool) -> ValueReader:
    """Returns the reader of an integer of so many bytes."""
    number = int.from_bytes
    signed = not unsigned

    def read(data: bytes, at: int) -> tuple[int, int]:
        end = at + size
        return number(data[at:end], "little", signed=signed), end

    return read


def float32(data: bytes, at: int) -> tuple[float, int]:
    return _FLOAT.unpack_from(data, at)[0], at + 4


def float64(data: bytes, at: int) -> tuple[float, int]:
    return _DOUBLE.unpack_from(data, at)[0], at + 8


def year(data: bytes, at: int) -> tuple[int, int]:
    return (1900 + data[at] if data[at] else 0), at + 1


def bits(width: int) -> ValueReader:
    """Returns the reader of a BIT column; its value is the number that the bits are."""
    size = (width + 7) // 8

    def read(data: bytes, at: int) -> tuple[int, int]:
        value = int.from_bytes(data[at : at + size], "big")
        if value >> width:
            raise MalformedError("a BIT value has more bits than its column")
        return value, at + size

    return read


def decimal(precision: int, scale: int) -> ValueReader:
    """Returns the reader of a DECIMAL: groups of nine digits in four bytes, the first bit inverted, a negative number inverted whole."""
    groups = _groups(precision, scale)
    size = decimal_bytes(precision, scale)
    top, all_bits = 1 << (8 * size - 1), (1 << 8 * size) - 1

    def read(data: bytes, at: int) -> tuple[Decimal, int]:
        end = at + size
        packed = int.from_bytes(data[at:end], "big")
        is_negative = not packed & top
        packed = (packed ^ all_bits if is_negative else packed) ^ top
        return Decimal((is_negative, _digits(packed, groups), -scale)), end

    return read


def decimal_bytes(precision: int, scale: int) -> int:
    """Returns how many bytes a DECIMAL takes."""
    return sum(size for _, size in _groups(precision, scale))


def _groups(precision: int, scale: int) -> list[tuple[int, int]]:
    """Returns the groups of digits, each with the bytes that it takes."""
    head, whole_groups = (precision - scale) % _DIGITS, (precision - scale) // _DIGITS
    part_groups, tail = scale // _DIGITS, scale % _DIGITS
    return [
        *([(head, _BYTES_OF_DIGITS[head])] if head else []),
        *[(_DIGITS, 4)] * (whole_groups + part_groups),
        *([(tail, _BYTES_OF_DIGITS[tail])] if tail else []),
    ]


def _digits(packed: int, groups: list[tuple[int, int]]) -> tuple[int, ...]:
    """Returns the digits of all groups, without leading zeros."""
    number, unit = 0, 1
    for digits, size in reversed(groups):
        group = packed & ((1 << 8 * size) - 1)
        packed >>= 8 * size
        power: int = 10**digits
        if group >= power:
            raise MalformedError("a decimal has a group of too many digits")
        number += group * unit
        unit *= power
    return tuple(map(int, str(number)))
