"""MessagePack: values by their fields, without a schema."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from cdcworker.connectors.config.definition import one_of
from cdcworker.connectors.formats.format import NOTHING, Format, Headers, Typed, setting, unreadable
from cdcworker.connectors.formats.single_values import UnframedWriter, connect_schema_of
from cdcworker.connectors.transforms import numbers
from cdcworker.connectors.transforms.data import DECIMAL, ConnectSchema
from cdcworker.schemas.change import Avro
from cdcworker.schemas.record_format import RecordWriter

MESSAGE_PACK: Final = "cdcworker.MessagePackConverter"
BYTES: Final = "BYTES"
TEXT: Final = "TEXT"
DEPTH_MAX: Final = 64
NIL: Final = b"\xc0"
Write = Callable[[Any], bytes]
_FLOAT64: Final = struct.Struct(">Bd")
_FLOAT32: Final = struct.Struct(">Bf")
_UNSIGNED: Final = ((0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8))
_SIGNED: Final = ((0xD0, 1), (0xD1, 2), (0xD2, 4), (0xD3, 8))


# Writing


@dataclass(frozen=True, slots=True)
class MessagePackFormat:
    """Values as maps of their fields. With `text` decimals are text, else the bytes of their unscaled number."""

    text: bool = False

    def writer(self, kind: Avro | None, *, optional: bool = False) -> RecordWriter:
        write = packed if kind is None else _written(connect_schema_of(kind), text=self.text)
        return UnframedWriter(kind, write)


def _written(schema: ConnectSchema, *, text: bool) -> Write:
    """Returns what writes values of a schema."""
    if schema.type == "struct":
        return _struct(schema, text=text)
    if schema.type in ("array", "map") and schema.value_schema is not None:
        item = _optional(_written(schema.value_schema, text=text))
        return _array(item) if schema.type == "array" else _map(item)
    if schema.type == "bytes":
        if schema.name == DECIMAL and text:
            return lambda value: packed(format(numbers.decimal_of(value, schema), "f"))
        return lambda value: packed(bytes(value))
    if schema.type == "float32":
        return lambda value: _FLOAT32.pack(0xCA, value)
    if schema.type == "float64":
        return lambda value: _FLOAT64.pack(0xCB, value)
    wanted = {"string": str, "boolean": bool}.get(schema.type, int)

    def write(value: Any) -> bytes:
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            raise TypeError("another type")
        return packed(value)

    return write


def _optional(write: Write) -> Write:
    return lambda value: NIL if value is None else write(value)


def _struct(schema: ConnectSchema, *, text: bool) -> Write:
    names = tuple(name for name, _ in schema.fields)
    writes = tuple((packed(name), _optional(_written(of, text=text))) for name, of in schema.fields)
    head = _head(len(names), 0x80, 15, ((0xDE, 2), (0xDF, 4)))

    def write(value: Any) -> bytes:
        row = value if isinstance(value, tuple) else [value.get(name) for name in names]
        return head + b"".join([name + of(item) for (name, of), item in zip(writes, row, strict=True)])

    return write


def _array(write: Write) -> Write:
    return lambda items: _head(len(items), 0x90, 15, ((0xDC, 2), (0xDD, 4))) + b"".join(map(write, items))


def _map(write: Write) -> Write:
    return lambda items: (
        _head(len(items), 0x80, 15, ((0xDE, 2), (0xDF, 4)))
        + b"".join([packed(name) + write(item) for name, item in items.items()])
    )


def _head(size: int, fixed: int, fixed_max: int, sized: tuple[tuple[int, int], ...]) -> bytes:
    if size <= fixed_max:
        return bytes((fixed | size,))
    for code, width in sized:
        if size < 1 << 8 * width:
            return bytes((code,)) + size.to_bytes(width, "big")
    raise ValueError("too long")


def packed(value: Any) -> bytes:
    """Returns the bytes of a value without a schema. Raises TypeError for a type that MessagePack does not have."""
    if value is None:
        return NIL
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return _FLOAT64.pack(0xCB, value)
    if isinstance(value, str):
        data = value.encode()
        return _head(len(data), 0xA0, 31, ((0xD9, 1), (0xDA, 2), (0xDB, 4))) + data
    if isinstance(value, bytes | bytearray):
        return _head(len(value), 0, -1, ((0xC4, 1), (0xC5, 2), (0xC6, 4))) + bytes(value)
    if isinstance(value, list | tuple):
        return _array(packed)(value)
    if isinstance(value, dict):
        return _map(packed)(value)
    raise TypeError(f"a value of class {type(value).__name__} has no form in MessagePack")


def _integer(value: int) -> bytes:
    if -32 <= value < 128:
        return (value & 0xFF).to_bytes(1, "big")
    for code, width in _UNSIGNED if value >= 0 else _SIGNED:
        bits = 8 * width
        if value < 1 << bits if value >= 0 else value >= -(1 << bits - 1):
            return bytes((code,)) + value.to_bytes(width, "big", signed=value < 0)
    raise OverflowError("a number of more than 64 bits")


# Reading


class MessagePackReader:
    """Reads values as they are; an extension type is an error."""

    def read(self, data: bytes | None, headers: Headers = ()) -> Typed:
        if data is None:
            return NOTHING
        try:
            value, end = _unpacked(data, 0, 0)
            if end != len(data):
                raise ValueError("more than one value")
        except (ValueError, IndexError, TypeError, struct.error, RecursionError) as error:
            raise unreadable("the bytes are no MessagePack", error) from None
        return Typed(None, value)


def _unpacked(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    """Returns a value and where it ends."""
    if depth > DEPTH_MAX:
        raise ValueError("nested too deeply")
    code = data[at]
    at += 1
    if code < 0x80 or code >= 0xE0:
        return code if code < 0x80 else code - 256, at
    if code < 0xC0:
        return _fixed(data, at, code, depth)
    if code in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[code], at
    if code in (0xCA, 0xCB):
        of = struct.Struct(">f" if code == 0xCA else ">d")
        return of.unpack_from(data, at)[0], at + of.size
    if 0xCC <= code <= 0xD3:
        width = 1 << (code - 0xCC) % 4
        return int.from_bytes(_taken(data, at, width), "big", signed=code >= 0xD0), at + width
    return _long(data, at, code, depth)


def _fixed(data: bytes, at: int, code: int, depth: int) -> tuple[Any, int]:
    if code >= 0xA0:
        return _taken(data, at, code & 31).decode(), at + (code & 31)
    return _items(data, at, code & 15, depth) if code >= 0x90 else _members(data, at, code & 15, depth)


_WIDTHS: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}


def _long(data: bytes, at: int, code: int, depth: int) -> tuple[Any, int]:
    if code not in _WIDTHS:
        raise ValueError("an extension type")
    width = _WIDTHS[code]
    size, at = int.from_bytes(_taken(data, at, width), "big"), at + width
    if code >= 0xDC:
        return _items(data, at, size, depth) if code < 0xDE else _members(data, at, size, depth)
    found = _taken(data, at, size)
    return found if code < 0xC9 else found.decode(), at + size


def _taken(data: bytes, at: int, size: int) -> bytes:
    if size > len(data) - at:
        raise ValueError("the bytes end too early")
    return data[at : at + size]


def _items(data: bytes, at: int, size: int, depth: int) -> tuple[list[Any], int]:
    if size > len(data) - at:
        raise ValueError("the bytes end too early")
    out = []
    for _ in range(size):
        value, at = _unpacked(data, at, depth + 1)
        out.append(value)
    return out, at


def _members(data: bytes, at: int, size: int, depth: int) -> tuple[dict[Any, Any], int]:
    if size > len(data) - at:
        raise ValueError("the bytes end too early")
    out: dict[Any, Any] = {}
    for _ in range(size):
        name, at = _unpacked(data, at, depth + 1)
        out[name], at = _unpacked(data, at, depth + 1)
    return out, at


FORMATS: Final = (
    Format(
        (MESSAGE_PACK, "MessagePackConverter", "message_pack"),
        lambda settings: MessagePackFormat(text=settings["decimal.format"] == TEXT),
        lambda _settings, _schemas: MessagePackReader(),
        "MessagePack, without a schema.",
        keys=(
            setting(
                "decimal.format", BYTES, "Decimals as the bytes of their unscaled number, or as text.",
                validator=one_of(BYTES, TEXT), recommended=(BYTES, TEXT),
            ),
        ),
    ),
)  # fmt: skip
