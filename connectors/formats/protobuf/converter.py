"""Confluent's ProtobufConverter: framed messages, with the places of the message in its file behind the id."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from cdcworker.connectors.formats.format import (
    NOTHING,
    SCHEMAS_MAX,
    FindsSchemas,
    Format,
    Headers,
    Settings,
    Typed,
    setting,
    unreadable,
)
from cdcworker.connectors.formats.framed import FramedWriter, framed_schema
from cdcworker.connectors.formats.json_payload import UNFIT
from cdcworker.connectors.formats.protobuf import wire
from cdcworker.connectors.formats.protobuf.from_connect import ProtobufOptions, made_of
from cdcworker.connectors.formats.protobuf.proto_parser import ProtoRefused, parse_proto
from cdcworker.connectors.formats.protobuf.proto_text import proto_text
from cdcworker.connectors.formats.protobuf.reader import FileReader, MessageReader
from cdcworker.connectors.formats.protobuf.writer import compile_message
from cdcworker.connectors.formats.single_values import connect_schema_of
from cdcworker.connectors.transforms.bounded_cache import BoundedCache
from cdcworker.schemas.avro import TypedSchema
from cdcworker.schemas.change import Avro
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.record_format import NO_FORM, RecordWriter

PROTOBUF: Final = "io.confluent.connect.protobuf.ProtobufConverter"
_FIRST: Final = b"\0"
"""The places of the first message of a file."""
_PLACES_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class ProtobufFormat:
    """Framed messages of Protocol Buffers."""

    options: ProtobufOptions

    def writer(self, kind: Avro | None, *, optional: bool = False) -> RecordWriter:
        if kind is None:
            raise CdcError(NO_FORM, "a value without a schema is no message; the JsonConverter can write it")
        made = made_of(replace(connect_schema_of(kind), optional=optional), self.options)
        return FramedWriter(
            kind, TypedSchema("PROTOBUF", proto_text(made.file), made.name), compile_message(made.root), head=_FIRST
        )


class ProtobufReader:
    """Reads framed messages by the .proto file of their id."""

    def __init__(self, schemas: FindsSchemas, options: ProtobufOptions) -> None:
        self._schemas = schemas
        self._options = options
        self._known: BoundedCache[tuple[str, tuple[int, ...]], MessageReader | str] = BoundedCache(SCHEMAS_MAX)

    def read(self, data: bytes | None, headers: Headers = ()) -> Typed:
        if data is None:
            return NOTHING
        stored, offset = framed_schema(data, self._schemas, "PROTOBUF")
        try:
            places, offset = _places(data, offset)
            reader = self._known.get((stored.fingerprint, places))
            if reader is None:
                reader = self._known[stored.fingerprint, places] = self._reader(stored.text, places)
            if isinstance(reader, str):
                raise unreadable(f"the .proto file of the message is not read: {reader}", id=stored.id)
            return Typed(reader.schema, reader.read(data[offset:]))
        except UNFIT as error:
            raise unreadable("the message does not fit its schema", error, id=stored.id) from None

    def _reader(self, text: str, places: tuple[int, ...]) -> MessageReader | str:
        """Returns the reader of a message, or why there is none: a topic may have many records of it."""
        try:
            return FileReader(parse_proto(text), self._options).at(places)
        except ProtoRefused as error:
            return str(error)


def _places(data: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Returns the places of the message in its file, and where they end."""
    raw, at = wire.read_varint(data, at)
    count = wire.zigzag(raw)
    if not 0 <= count <= _PLACES_MAX:
        raise ValueError("no places")
    out = []
    for _ in range(count):
        raw, at = wire.read_varint(data, at)
        out.append(wire.zigzag(raw))
    return tuple(out) or (0,), at


def _options(settings: Settings) -> ProtobufOptions:
    return ProtobufOptions(
        settings["optional.for.nullables"], settings["wrapper.for.nullables"], settings["scrub.invalid.names"]
    )


FORMATS: Final = (
    Format(
        (PROTOBUF, "ProtobufConverter", "protobuf"),
        lambda settings: ProtobufFormat(_options(settings)),
        lambda settings, schemas: ProtobufReader(schemas, _options(settings)),
        "Protocol Buffers in Confluent's framing; the schema is registered as a .proto file.",
        keys=(
            setting("optional.for.nullables", False, "A column that may be null is an optional field, so that a null is one."),
            setting("wrapper.for.nullables", False, "A column that may be null is a wrapper message, so that a null is one."),
            setting("scrub.invalid.names", False, "Characters that Protocol Buffers do not allow in names become `_`."),
        ),
        schema_type="PROTOBUF",
        note="A null is read as zero, unless optional.for.nullables or wrapper.for.nullables of this converter is true.",
    ),
)  # fmt: skip
