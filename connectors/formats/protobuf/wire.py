"""The bytes of Protocol Buffers: varints, tags, and the fields of a message before anybody says what they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
VARINT_BYTES_MAX: Final = 10
_MASK64: Final = (1 << 64) - 1


def varint(number: int) -> bytes:
    """Returns a number of up to 64 bits, a negative one as its two's complement."""
    number &= _MASK64
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def tag(number: int, kind: int) -> bytes:
    """Returns what stands before a field's value."""
    return varint(number << 3 | kind)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns an unsigned number and where it ends. Raises ValueError."""
    number = shift = 0
    while True:
        if at >= len(data) or shift >= 7 * VARINT_BYTES_MAX:
            raise ValueError("a varint does not end")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & _MASK64, at
        shift += 7


def signed(number: int, bits: int) -> int:
    """Returns the low bits of an unsigned number as a signed one."""
    half = 1 << (bits - 1)
    return (number + half) % (1 << bits) - half


def zigzag(number: int) -> int:
    """Returns the signed number that a zigzag one stands for."""
    return (number >> 1) ^ -(number & 1)


def fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Yields number, wire type and raw value of each field: a number for a varint, else bytes. Raises ValueError."""
    at, end = 0, len(data)
    while at < end:
        head, at = read_varint(data, at)
        number, kind = head >> 3, head & 7
        if not 0 < number < 1 << 29:
            raise ValueError("a field has no number")
        if kind == VARINT:
            value, at = read_varint(data, at)
            yield number, kind, value
            continue
        if kind == BYTES:
            size, at = read_varint(data, at)
        elif kind in (FIXED32, FIXED64):
            size = 4 if kind == FIXED32 else 8
        else:
            raise ValueError("a field is of an unknown wire type")
        if size > end - at:
            raise ValueError("a field is longer than its message")
        yield number, kind, data[at : at + size]
        at += size
