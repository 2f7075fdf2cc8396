"""Compiles an Avro type into a function from a value to its binary encoding."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from cdcworker.schemas.avro import without_logical_types
from cdcworker.schemas.change import Avro

Write = Callable[[Any], bytes]
"""Returns the binary encoding of a value. Raises TypeError, ValueError, OverflowError or another error if it does not
fit."""

_CONTINUED = [bytes((low | 0x80, high | 0x80)) for high in range(128) for low in range(128)]
"""The two bytes of a varint's continued part, by 14 bits of the number."""
_SHORT: Final = [bytes((z,)) for z in range(128)] + [bytes((z & 127 | 128, z >> 7)) for z in range(128, 16384)]
_LONG_MIN, _LONG_MAX = -(1 << 63), (1 << 63) - 1
SIZE: Final = _SHORT[::2]
"""The encoding of a size below 8192."""

_BOOLEANS: Final = {False: b"\0", True: b"\1"}
_float = struct.Struct("<f").pack
_double = struct.Struct("<d").pack


def write_long(value: int) -> bytes:
    """Returns a long as a zigzag varint."""
    z = value << 1 ^ value >> 63
    if z < 16384:
        return _SHORT[z]
    if not _LONG_MIN <= value <= _LONG_MAX:
        raise OverflowError("the number does not fit 64 bits")
    out = _CONTINUED[z & 16383]
    z >>= 14
    while z >= 16384:
        out += _CONTINUED[z & 16383]
        z >>= 14
    return out + _SHORT[z]


def write_int(value: int) -> bytes:
    """Returns an int as a zigzag varint."""
    if -0x80000000 <= value <= 0x7FFFFFFF:
        return write_long(value)
    raise OverflowError("the number does not fit 32 bits")


def write_boolean(value: bool) -> bytes:
    """Returns a boolean as one byte."""
    return _BOOLEANS[value]


def write_bytes(value: bytes) -> bytes:
    """Returns bytes after their length."""
    size = len(value)
    return (SIZE[size] if size < 8192 else write_long(size)) + value


def write_string(value: str) -> bytes:
    """Returns UTF-8 text after its length in bytes."""
    data = value.encode()
    size = len(data)
    return (SIZE[size] if size < 8192 else write_long(size)) + data


def write_float(value: float) -> bytes:
    """Returns a float as 4 little-endian bytes."""
    return _float(value)


def write_double(value: float) -> bytes:
    """Returns a double as 8 little-endian bytes."""
    return _double(value)


def _write_null(_: Any) -> bytes:
    return b""


_PRIMITIVES: Final[dict[str, Write]] = {
    "null": _write_null,
    "boolean": write_boolean,
    "int": write_int,
    "long": write_long,
    "float": write_float,
    "double": write_double,
    "bytes": write_bytes,
    "string": write_string,
}


def compile_type(kind: Avro, named: dict[str, Write] | None = None) -> Write:
    """Returns the writer of an Avro type. `named` collects the writers of named types, for references to them."""
    named = {} if named is None else named
    if isinstance(kind, str):
        return _PRIMITIVES[kind] if kind in _PRIMITIVES else named[kind]
    if isinstance(kind, list):
        return _union(kind, named)
    inner = kind["type"]
    if not isinstance(inner, str):
        return compile_type(inner, named)
    if inner in _PRIMITIVES:
        return _PRIMITIVES[inner]
    if inner == "array":
        return _array(compile_type(kind["items"], named))
    if inner == "record":
        return _named(kind, _record(kind, named), named)
    if inner == "map":
        return _map(compile_type(kind["values"], named))
    if inner == "enum":
        return _named(kind, _enum(kind["symbols"]), named)
    if inner == "fixed":
        return _named(kind, _fixed(kind["size"]), named)
    return named[inner]


def _named(kind: Mapping[str, Any], write: Write, named: dict[str, Write]) -> Write:
    if "name" in kind:
        space = kind.get("namespace")
        named[f"{space}.{kind['name']}" if space and "." not in kind["name"] else kind["name"]] = write
    return write


def _union(branches: list[Any], named: dict[str, Write]) -> Write:
    if len(branches) == 2 and "null" in branches:
        null_first = branches[0] == "null"
        return optional(compile_type(branches[null_first], named), null_first=null_first)
    return _by_fastavro(branches)


@lru_cache(maxsize=256)
def optional(write: Write, *, null_first: bool) -> Write:
    """Returns the writer of a union with null. Strings, the most frequent, have a writer of their own that saves a
    call. Those of primitive types are kept: thousands of tables share them."""
    null, some = (b"\0", b"\2") if null_first else (b"\2", b"\0")

    def write_optional(value: Any) -> bytes:
        return null if value is None else some + write(value)

    def write_optional_string(value: str | None) -> bytes:
        if value is None:
            return null
        data = value.encode()
        size = len(data)
        return some + (SIZE[size] if size < 8192 else write_long(size)) + data

    return write_optional_string if write is write_string else write_optional


def _array(write: Write) -> Write:
    def write_array(values: Any) -> bytes:
        size = len(values)
        return b"".join((write_long(size), *map(write, values), b"\0")) if size else b"\0"

    return write_array


def _map(write: Write) -> Write:
    def write_map(values: Mapping[str, Any]) -> bytes:
        items = [write_string(name) + write(value) for name, value in values.items()]
        return b"".join((write_long(len(items)), *items, b"\0")) if items else b"\0"

    return write_map


def _enum(symbols: Sequence[str]) -> Write:
    return {symbol: write_long(index) for index, symbol in enumerate(symbols)}.__getitem__


def _fixed(size: int) -> Write:
    def write_fixed(value: bytes) -> bytes:
        if len(value) != size:
            raise ValueError("the value has not the size of its fixed type")
        return bytes(value)

    return write_fixed


def _record(kind: Mapping[str, Any], named: dict[str, Write]) -> Write:
    fields = [(field["name"], compile_type(field["type"], named)) for field in kind["fields"]]

    def write_record(value: Mapping[str, Any]) -> bytes:
        return b"".join([write(value.get(name)) for name, write in fields])

    return write_record


def _by_fastavro(kind: Any) -> Write:
    """Returns the writer of a union of several types: fastavro chooses the branch. It must not refer to types
    outside."""
    import fastavro

    parsed = fastavro.parse_schema(without_logical_types(kind))

    def write_any(value: Any) -> bytes:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, parsed, value)
        return buffer.getvalue()

    return write_any
