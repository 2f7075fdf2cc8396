"""Reads messages by the .proto file of their id: as Kafka Connect's schemas and values, the way Confluent's converter does."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from cdcworker.connectors.formats.protobuf import wire
from cdcworker.connectors.formats.protobuf.from_connect import TAG, ProtobufOptions
from cdcworker.connectors.formats.protobuf.message_type import (
    DATE_TYPE,
    DECIMAL_TYPE,
    SCALARS,
    TIME_TYPE,
    TIMESTAMP_TYPE,
    WELL_KNOWN,
    WRAPPERS,
    EnumType,
    FieldType,
    MessageType,
    ProtoFile,
)
from cdcworker.connectors.formats.protobuf.proto_parser import FIELDS_MAX, ProtoRefused
from cdcworker.connectors.transforms import numbers
from cdcworker.connectors.transforms.data import DATE, DECIMAL, TIME, TIMESTAMP, ConnectSchema, Field, Type

DEPTH_MAX: Final = 32
ENUM: Final = "io.confluent.connect.protobuf.Enum"
UNION: Final = "io.confluent.connect.protobuf.Union."
_EPOCH: Final = date(1970, 1, 1).toordinal()
_TYPES: Final[Mapping[str, Type]] = {
    **dict.fromkeys(("int32", "sint32", "sfixed32"), "int32"),
    **dict.fromkeys(("uint32", "fixed32", "int64", "uint64", "sint64", "fixed64", "sfixed64"), "int64"),
    "float": "float32",
    "double": "float64",
    "bool": "boolean",
    "string": "string",
    "bytes": "bytes",
}
_FIXED: Final[Mapping[str, struct.Struct]] = {
    "float": struct.Struct("<f"),
    "double": struct.Struct("<d"),
    "fixed32": struct.Struct("<I"),
    "fixed64": struct.Struct("<q"),
    "sfixed32": struct.Struct("<i"),
    "sfixed64": struct.Struct("<q"),
}
_VARINTS: Final[Mapping[str, Callable[[int], Any]]] = {
    "int32": lambda number: wire.signed(number, 32),
    "int64": lambda number: wire.signed(number, 64),
    "uint32": lambda number: number & 0xFFFFFFFF,
    "uint64": lambda number: wire.signed(number, 64),
    "sint32": lambda number: wire.signed(wire.zigzag(number), 32),
    "sint64": lambda number: wire.signed(wire.zigzag(number), 64),
    "bool": bool,
}
_ZEROES: Final[Mapping[Type, Any]] = {
    "int8": 0, "int16": 0, "int32": 0, "int64": 0, "float32": 0.0, "float64": 0.0, "boolean": False, "string": "", "bytes": b"",
}  # fmt: skip
Read = Callable[[int, Any], Any]
"""Reads a raw value of a wire type."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a type is: its schema without a label, how one value is read, and whether an absent one is null."""

    schema: ConnectSchema
    read: Read
    is_message: bool
    fixed: struct.Struct | None = None
    is_varint: bool = False
    size: int = 1
    """How many fields there are in it, with those of each message in it."""
    zero: Any = None
    """What an absent value is, where the type of the schema does not say it."""


@dataclass(slots=True)
class _Slot:
    """Where a field's values go."""

    name: str
    kind: _Kind
    label: str
    union: str = ""
    entry: tuple[_Kind, _Kind] | None = None


class MessageReader:
    """Reads one type of messages. `schema` is what its values have."""

    def __init__(self, schema: ConnectSchema, slots: Mapping[int, _Slot], absent: Mapping[str, Any]) -> None:
        self.schema = schema
        self.size = 1 + sum(slot.kind.size for slot in slots.values())
        self._slots = slots
        self._absent = absent
        """What each field is that the message does not have; a list is made anew for each message."""

    def read(self, data: bytes) -> dict[str, Any]:
        """Returns the values of a message. Raises ValueError or one of its kind."""
        out = {name: [] if value == [] else {} if value == {} else value for name, value in self._absent.items()}
        for number, kind, raw in wire.fields(data):
            slot = self._slots.get(number)
            if slot is None:
                continue
            if slot.entry is not None:
                key, value = _entry(slot.entry, kind, raw)
                out[slot.name][key] = value
            elif slot.label == "repeated":
                out[slot.name] += _items(slot.kind, kind, raw)
            elif slot.union:
                out[slot.union] = {slot.name: slot.kind.read(kind, raw)}
            else:
                out[slot.name] = slot.kind.read(kind, raw)
        return out


def _items(kind: _Kind, wire_type: int, raw: Any) -> list[Any]:
    if wire_type == wire.BYTES and kind.is_varint:
        out, at = [], 0
        while at < len(raw):
            number, at = wire.read_varint(raw, at)
            out.append(kind.read(wire.VARINT, number))
        return out
    if wire_type == wire.BYTES and kind.fixed is not None:
        return [value for (value,) in kind.fixed.iter_unpack(raw)]
    return [kind.read(wire_type, raw)]


def _entry(kinds: tuple[_Kind, _Kind], wire_type: int, raw: Any) -> tuple[Any, Any]:
    if wire_type != wire.BYTES:
        raise ValueError("another wire type")
    found: list[Any] = [_absent_value(kind) for kind in kinds]
    for number, kind, value in wire.fields(raw):
        if number in (1, 2):
            found[number - 1] = kinds[number - 1].read(kind, value)
    return found[0], found[1]


def _absent_value(kind: _Kind) -> Any:
    return None if kind.is_message else kind.zero or _ZEROES[kind.schema.type]


def _scalar(name: str, params: Mapping[str, str]) -> _Kind:
    kind = _TYPES[name]
    if kind == "int32" and params.get("connect.type") in ("int8", "int16"):
        kind = "int8" if params["connect.type"] == "int8" else "int16"
    fixed, varint = _FIXED.get(name), _VARINTS.get(name)

    def read(wire_type: int, raw: Any) -> Any:
        if varint is not None and wire_type == wire.VARINT:
            return varint(raw)
        if fixed is not None and wire_type in (wire.FIXED32, wire.FIXED64):
            return fixed.unpack(raw)[0]
        if wire_type != wire.BYTES or varint is not None or fixed is not None:
            raise ValueError("another wire type")
        return raw.decode() if name == "string" else raw

    return _Kind(ConnectSchema(kind), read, False, fixed, varint is not None)


# Files


class FileReader:
    """Makes readers of the messages of a file."""

    def __init__(self, file: ProtoFile, options: ProtobufOptions) -> None:
        self._options = options
        self._file = file
        self._messages: dict[str, MessageType] = {}
        self._enums: dict[str, EnumType] = {}
        self._remember(file.package, file.messages, file.enums)
        self._open: list[str] = []
        self._readers: dict[str, MessageReader] = {}

    def _remember(self, scope: str, messages: Sequence[MessageType], enums: Sequence[EnumType]) -> None:
        for enum in enums:
            self._enums[_in(scope, enum.name)] = enum
        for message in messages:
            full = _in(scope, message.name)
            self._messages[full] = message
            self._remember(full, message.messages, message.enums)

    def at(self, path: Sequence[int]) -> MessageReader:
        """Returns the reader of the message with these places in the file. Raises ProtoRefused."""
        messages, scope = self._file.messages, self._file.package
        for number in path[:-1]:
            message = _nth(messages, number)
            messages, scope = message.messages, _in(scope, message.name)
        return self._reader(_in(scope, _nth(messages, path[-1]).name))

    def _reader(self, full: str) -> MessageReader:
        known = self._readers.get(full)
        if known is not None:
            return known
        if full in self._open:
            raise ProtoRefused("a message holds itself, which Kafka Connect's schemas do not know here")
        if len(self._open) > DEPTH_MAX:
            raise ProtoRefused("messages are nested too deeply")
        self._open.append(full)
        try:
            made = self._readers[full] = self._made(full, self._messages[full])
        finally:
            self._open.pop()
        if made.size > FIELDS_MAX:
            raise ProtoRefused("a message has too many fields, with those of the messages in it")
        return made

    def _made(self, full: str, message: MessageType) -> MessageReader:
        fields: dict[str, Field] = {}
        slots: dict[int, _Slot] = {}
        absent: dict[str, Any] = {}
        unions: dict[str, list[Field]] = {}
        places = {name: n for n, name in enumerate(dict.fromkeys(one.oneof for one in message.fields if one.oneof))}
        for of in message.fields:
            slot, schema = self._slot(of, full)
            slots[of.number] = slot
            if of.oneof:
                slot.union = f"{of.oneof}_{places[of.oneof]}"
                unions.setdefault(slot.union, []).append(Field(of.name, schema))
                fields.setdefault(slot.union, Field(slot.union, schema))
                absent[slot.union] = None
                continue
            fields[of.name] = Field(of.name, schema)
            absent[of.name] = _absent_of(slot)
        for name, branches in unions.items():
            union = ConnectSchema("struct", True, name=UNION + name.rpartition("_")[0], fields=tuple(branches))
            fields[name] = Field(name, union)
        return MessageReader(ConnectSchema("struct", name=message.name, fields=tuple(fields.values())), slots, absent)

    def _slot(self, of: FieldType, scope: str) -> tuple[_Slot, ConnectSchema]:
        parameters = {TAG: str(of.number)}
        if of.map_types:
            key, value = self._kind(of.map_types[0], scope, {}), self._kind(of.map_types[1], scope, of.params)
            schema = ConnectSchema("map", True, key_schema=key.schema, value_schema=value.schema, parameters=parameters)
            return _Slot(of.name, key, "map", entry=(key, value)), schema
        kind = self._kind(of.type, scope, of.params)
        inner = kind.schema
        if of.label == "repeated":
            item = ConnectSchema(**{**_parts(inner), "optional": True})
            return _Slot(of.name, kind, of.label), ConnectSchema(
                "array", True, value_schema=item, parameters=parameters
            )
        keeps_nulls = self._options.wrapper_for_nullables or self._options.optional_for_nullables
        optional = kind.is_message or of.label == "optional" or not keeps_nulls
        schema = ConnectSchema(
            **{**_parts(inner), "optional": optional, "parameters": {**(inner.parameters or {}), **parameters}}
        )
        return _Slot(of.name, kind, of.label), schema

    def _kind(self, name: str, scope: str, params: Mapping[str, str]) -> _Kind:
        if name in SCALARS:
            return _scalar(name, params)
        full = self._resolved(name, scope)
        if full in self._enums:
            return _enum(self._enums[full])
        logical = _LOGICAL.get(full)
        if logical is not None:
            return logical(params)
        if full in WRAPPERS and self._options.wrapper_for_nullables:
            return _wrapped(WRAPPERS[full])
        if full in WELL_KNOWN:
            return _message(_well_known(full))
        return _message(self._reader(full))

    def _resolved(self, name: str, scope: str) -> str:
        """Returns the whole name of a type, from the innermost scope outwards."""
        if name.startswith("."):
            names = [name[1:]]
        else:
            parts = scope.split(".")
            names = [_in(".".join(parts[:count]), name) for count in range(len(parts), -1, -1)]
        for full in names:
            if full in self._messages or full in self._enums or full in WELL_KNOWN:
                return full
        raise ProtoRefused("a type that the file does not describe: files of other subjects are not read")


def _in(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


def _nth(messages: Sequence[MessageType], number: int) -> MessageType:
    if not 0 <= number < len(messages):
        raise ProtoRefused("the record is of a message that its file does not have")
    return messages[number]


def _parts(schema: ConnectSchema) -> dict[str, Any]:
    return {
        "type": schema.type, "name": schema.name, "version": schema.version, "parameters": schema.parameters,
        "fields": schema.fields, "key_schema": schema.key_schema, "value_schema": schema.value_schema,
    }  # fmt: skip


def _absent_of(slot: _Slot) -> Any:
    if slot.entry is not None:
        return {}
    if slot.label == "repeated":
        return []
    return None if slot.label == "optional" else _absent_value(slot.kind)


# Messages as values


def _message(reader: MessageReader) -> _Kind:
    return _Kind(reader.schema, lambda wire_type, raw: reader.read(_sized(wire_type, raw)), True, size=reader.size)


def _sized(wire_type: int, raw: Any) -> bytes:
    if wire_type != wire.BYTES:
        raise ValueError("another wire type")
    found: bytes = raw
    return found


def _enum(enum: EnumType) -> _Kind:
    parameters = {ENUM: enum.name, **{f"{ENUM}.{name}": str(number) for number, name in enum.values.items()}}
    schema = ConnectSchema("string", True, name=enum.name, parameters=parameters)
    varint = _VARINTS["int32"]

    def read(wire_type: int, raw: Any) -> str:
        if wire_type != wire.VARINT:
            raise ValueError("another wire type")
        number = varint(raw)
        return enum.values.get(number) or f"UNKNOWN_ENUM_VALUE_{enum.name}_{number}"

    return _Kind(schema, read, False, is_varint=True, zero=enum.values.get(0))


def _well_known(name: str) -> MessageReader:
    slots = {of.number: _Slot(of.name, _scalar(of.type, {}), "") for of in WELL_KNOWN[name].fields}
    fields = tuple(Field(slot.name, slot.kind.schema) for slot in slots.values())
    schema = ConnectSchema("struct", name=name.rpartition(".")[2], fields=fields)
    return MessageReader(schema, slots, {slot.name: _absent_of(slot) for slot in slots.values()})


def _wrapped(kind: str) -> _Kind:
    reader = _well_known(next(name for name, of in WRAPPERS.items() if of == kind))
    return _Kind(_scalar(kind, {}).schema, lambda wire_type, raw: reader.read(_sized(wire_type, raw))["value"], True)


def _of_known(name: str, schema: ConnectSchema, convert: Callable[[dict[str, Any]], Any]) -> _Kind:
    reader = _well_known(name)
    return _Kind(schema, lambda wire_type, raw: convert(reader.read(_sized(wire_type, raw))), True)


def _decimal(params: Mapping[str, str]) -> _Kind:
    scale = int(params.get("scale", "0"))
    parameters = {"scale": str(scale)}
    if "precision" in params:
        parameters["connect.decimal.precision"] = params["precision"]

    def convert(parts: dict[str, Any]) -> bytes:
        if parts["scale"] == scale:
            found: bytes = parts["value"]
            return found
        own = ConnectSchema("bytes", parameters={"scale": str(parts["scale"])})
        return numbers.decimal_bytes(numbers.decimal_of(parts["value"], own), scale)

    return _of_known(DECIMAL_TYPE, ConnectSchema("bytes", name=DECIMAL, version=1, parameters=parameters), convert)


def _date(parts: dict[str, Any]) -> int:
    return date(parts["year"], parts["month"], parts["day"]).toordinal() - _EPOCH


def _time(parts: dict[str, Any]) -> int:
    seconds = (parts["hours"] * 60 + parts["minutes"]) * 60 + parts["seconds"]
    whole: int = seconds * 1000 + parts["nanos"] // 1_000_000
    return whole


def _timestamp(parts: dict[str, Any]) -> int:
    whole: int = parts["seconds"] * 1000 + parts["nanos"] // 1_000_000
    return whole


_LOGICAL: Final[Mapping[str, Callable[[Mapping[str, str]], _Kind]]] = {
    DECIMAL_TYPE: _decimal,
    DATE_TYPE: lambda _: _of_known(DATE_TYPE, ConnectSchema("int32", name=DATE, version=1), _date),
    TIME_TYPE: lambda _: _of_known(TIME_TYPE, ConnectSchema("int32", name=TIME, version=1), _time),
    TIMESTAMP_TYPE: lambda _: _of_known(TIMESTAMP_TYPE, ConnectSchema("int64", name=TIMESTAMP, version=1), _timestamp),
}
