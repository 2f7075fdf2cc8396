"""Writes values as Protocol Buffers, by a writer that is compiled once for a message type."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from datetime import date
from typing import Any, Final

from cdcworker.connectors.formats.protobuf.from_connect import MadeField, MadeMessage
from cdcworker.connectors.formats.protobuf.message_type import (
    DATE_TYPE,
    DECIMAL_TYPE,
    LOGICAL_TYPES,
    TIME_TYPE,
    TIMESTAMP_TYPE,
)
from cdcworker.connectors.formats.protobuf.wire import BYTES, FIXED32, FIXED64, VARINT, tag, varint
from cdcworker.connectors.transforms.data import DAY_MS, ConnectSchema

Write = Callable[[Any], bytes]
_EPOCH: Final = date(1970, 1, 1).toordinal()
_RANGES: Final = {kind: 1 << (bits - 1) for kind, bits in (("int8", 8), ("int16", 16), ("int32", 32), ("int64", 64))}


def compile_message(message: MadeMessage, known: dict[int, Write] | None = None) -> Write:
    """Returns the writer of a message; it takes a mapping, or a tuple in the order of the fields."""
    known = {} if known is None else known
    if id(message) in known:
        return known[id(message)]
    writes = tuple(_field(field, known) for field in message.fields)
    names = tuple(field.name for field in message.fields)

    def write(value: Any) -> bytes:
        row = value if isinstance(value, tuple) else [value.get(name) for name in names]
        return b"".join([one(item) for one, item in zip(writes, row, strict=True) if item is not None])

    known[id(message)] = write
    return write


def _field(field: MadeField, known: dict[int, Write]) -> Write:
    of = field.field
    if of.map_types:
        return _map(field)
    value, kind = _value(field, known)
    head = tag(of.number, kind)
    if of.label == "repeated":
        return _packed(of.number, value) if kind != BYTES else _repeated(head, value)
    if kind == BYTES:
        is_message = field.message is not None or field.wrapped or field.schema.name in LOGICAL_TYPES
        return _sized(head, value, is_kept=is_message or of.label == "optional")
    if of.label == "optional":
        return lambda item: head + value(item)
    zero = value(0 if field.schema.type != "boolean" else False)

    def write_unless_zero(item: Any) -> bytes:
        body = value(item)
        return b"" if body == zero else head + body

    return write_unless_zero


def _value(field: MadeField, known: dict[int, Write]) -> tuple[Write, int]:
    """Returns what writes a value without its tag and length, and its wire type."""
    if field.message is not None:
        return compile_message(field.message, known), BYTES
    logical = LOGICAL_TYPES.get(field.schema.name or "")
    if logical:
        return _logical(logical, field.schema), BYTES
    value, kind = _scalar(field.schema)
    if not field.wrapped:
        return value, kind
    head = tag(1, kind)
    if kind == BYTES:
        return _sized(head, value, is_kept=False), BYTES
    zero = value(False if field.schema.type == "boolean" else 0)

    def write_wrapped(item: Any) -> bytes:
        body = value(item)
        return b"" if body == zero else head + body

    return write_wrapped, BYTES


def _sized(head: bytes, value: Write, *, is_kept: bool) -> Write:
    def write(item: Any) -> bytes:
        body = value(item)
        return head + varint(len(body)) + body if body or is_kept else b""

    return write


def _repeated(head: bytes, value: Write) -> Write:
    def write(items: Any) -> bytes:
        out: list[bytes] = []
        for item in items:
            if item is None:
                raise ValueError("an array of Protocol Buffers holds no null")
            body = value(item)
            out += (head, varint(len(body)), body)
        return b"".join(out)

    return write


def _packed(number: int, value: Write) -> Write:
    head = tag(number, BYTES)

    def write(items: Any) -> bytes:
        if not items:
            return b""
        body = b"".join([value(item) for item in items])
        return head + varint(len(body)) + body

    return write


def _map(field: MadeField) -> Write:
    schema, head = field.schema, tag(field.field.number, BYTES)
    assert schema.key_schema is not None
    assert schema.value_schema is not None
    key, value = _entry(1, schema.key_schema), _entry(2, schema.value_schema)

    def write(items: Mapping[Any, Any]) -> bytes:
        out: list[bytes] = []
        for name, item in items.items():
            body = key(name) + (b"" if item is None else value(item))
            out += (head, varint(len(body)), body)
        return b"".join(out)

    return write


def _entry(number: int, schema: ConnectSchema) -> Write:
    logical = LOGICAL_TYPES.get(schema.name or "")
    value, kind = (_logical(logical, schema), BYTES) if logical else _scalar(schema)
    head = tag(number, kind)
    return _sized(head, value, is_kept=True) if kind == BYTES else lambda item: head + value(item)


# Scalars


def _scalar(schema: ConnectSchema) -> tuple[Write, int]:
    if schema.type in _RANGES:
        return _integer(_RANGES[schema.type]), VARINT
    if schema.type == "boolean":
        return lambda value: _BOOLEANS[value], VARINT
    if schema.type == "float32":
        return struct.Struct("<f").pack, FIXED32
    if schema.type == "float64":
        return struct.Struct("<d").pack, FIXED64
    if schema.type == "string":
        return str.encode, BYTES
    return bytes, BYTES


_BOOLEANS: Final = {False: b"\0", True: b"\1"}


def _integer(limit: int) -> Write:
    def write(value: int) -> bytes:
        if not -limit <= value < limit:
            raise ValueError("out of range")
        return varint(value)

    return write


# Kafka Connect's logical types


def _logical(name: str, schema: ConnectSchema) -> Write:
    if name == DECIMAL_TYPE:
        scale = int((schema.parameters or {}).get("scale", "0"))
        return lambda value: _decimal(value, scale)
    return {DATE_TYPE: _date, TIME_TYPE: _time, TIMESTAMP_TYPE: _timestamp}[name]


def _numbers(*values: int) -> bytes:
    return b"".join([tag(number, VARINT) + varint(value) for number, value in enumerate(values, 1) if value])


def _decimal(value: bytes, scale: int) -> bytes:
    digits = len(str(abs(int.from_bytes(value, "big", signed=True))))
    body = b"\x0a" + varint(len(value)) + value if value else b""
    return body + b"\x10" + varint(digits) + (b"\x18" + varint(scale) if scale else b"")


def _date(days: int) -> bytes:
    found = date.fromordinal(_EPOCH + days)
    return _numbers(found.year, found.month, found.day)


def _time(millis: int) -> bytes:
    if not 0 <= millis < DAY_MS:
        raise ValueError("no time of a day")
    seconds, rest = divmod(millis, 1000)
    return _numbers(seconds // 3600, seconds // 60 % 60, seconds % 60, rest * 1_000_000)


def _timestamp(millis: int) -> bytes:
    seconds, rest = divmod(millis, 1000)
    return _numbers(seconds, rest * 1_000_000)
