"""Strings of row images: CHAR, VARCHAR, TEXT and their binary kin, ENUM and SET, and MariaDB's compressed columns."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Final

from cdcworker.connectors.mysql.errors import MalformedError
from cdcworker.connectors.mysql.types.numbers import ValueReader

Decode = Callable[[bytes], Any]
"""From the bytes of a string to its value."""
INFLATED_BYTES_MAX: Final = 1 << 30
"""Of a compressed value: what max_allowed_packet can be at most."""
_ZLIB: Final = 0x80
_RAW_DEFLATE: Final = 8


def prefixed(size: int, decode: Decode) -> ValueReader:
    """Returns the reader of a string whose length stands before it in so many bytes."""
    number = int.from_bytes

    def read(data: bytes, at: int) -> tuple[Any, int]:
        start = at + size
        end = start + number(data[at:start], "little")
        if end > len(data):
            raise MalformedError("a string is cut short")
        return decode(data[start:end]), end

    return read


def enum(size: int, members: tuple[str, ...]) -> ValueReader:
    """Returns the reader of an ENUM. Its value 0, which stands for text that was none of its members, is the empty text."""
    texts = ("", *members)

    def read(data: bytes, at: int) -> tuple[str, int]:
        number = int.from_bytes(data[at : at + size], "little")
        if number >= len(texts):
            raise MalformedError("an ENUM value beyond its members")
        return texts[number], at + size

    return read


def set_(size: int, members: tuple[str, ...]) -> ValueReader:
    """Returns the reader of a SET: its members in the order of the definition, as text with commas."""

    def read(data: bytes, at: int) -> tuple[str, int]:
        number = int.from_bytes(data[at : at + size], "little")
        if number >> len(members):
            raise MalformedError("a SET value beyond its members")
        return ",".join(member for i, member in enumerate(members) if number >> i & 1), at + size

    return read


def padded(length: int) -> Decode:
    """Returns what gives a BINARY value the zero bytes at its end that the log leaves out."""

    def decode(value: bytes) -> bytes:
        return value.ljust(length, b"\0")

    return decode


def same(value: bytes) -> bytes:
    return value


def inflated(decode: Decode) -> Decode:
    """Returns what decodes the value of a column that MariaDB compresses."""

    def decode_inflated(value: bytes) -> Any:
        return decode(_inflate(value))

    return decode_inflated


def _inflate(value: bytes) -> bytes:
    """Reads a compressed value: a byte that tells how, the length in as many bytes as it says, and the bytes."""
    if not value or not value[0]:
        return value[1:]
    head = value[0]
    if head & 0xF0 != _ZLIB:
        raise MalformedError("a column is compressed in an unknown way")
    width = head & 7
    size = int.from_bytes(value[1 : 1 + width], "big")
    if size > INFLATED_BYTES_MAX:
        raise MalformedError("a compressed value is larger than any value")
    engine = zlib.decompressobj(-zlib.MAX_WBITS if head & _RAW_DEFLATE else zlib.MAX_WBITS)
    try:
        found = engine.decompress(value[1 + width :], size + 1)
    except zlib.error:
        raise MalformedError("a compressed value is damaged") from None
    if len(found) != size:
        raise MalformedError("a compressed value has another length than it says")
    return found
