"""Kafka Connect's StringConverter: the text of a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from cdcworker.connectors.config.definition import one_of_any_case
from cdcworker.connectors.formats.format import NOTHING, Format, Headers, Typed, setting, unreadable
from cdcworker.connectors.formats.single_values import UnframedWriter, connect_schema_of
from cdcworker.connectors.transforms.data import DECIMAL, ConnectSchema, DataError
from cdcworker.connectors.transforms.values import text_of
from cdcworker.schemas.change import Avro
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.record_format import NO_FORM, RecordWriter

STRING: Final = "org.apache.kafka.connect.storage.StringConverter"
ENCODINGS: Final = {
    "utf8": "utf-8",
    "utf-8": "utf-8",
    "utf-16": "utf-16",
    "utf-16be": "utf-16-be",
    "utf-16le": "utf-16-le",
    "iso-8859-1": "latin-1",
    "us-ascii": "ascii",
}
"""Java's names of encodings, by Python's."""
_SCHEMA: Final = ConnectSchema("string", optional=True)
_Text = Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class TextFormat:
    """The text of values in an encoding."""

    encoding: str = "utf-8"

    def writer(self, kind: Avro | None, *, optional: bool = False) -> RecordWriter:
        write = _plain_text if kind is None else _written(connect_schema_of(kind))
        encoding = self.encoding
        return UnframedWriter(kind, lambda value: write(value).encode(encoding))


def _plain_text(value: Any) -> str:
    if isinstance(value, bytes | bytearray | list | tuple | dict):
        raise TypeError("bytes and structured values without a schema have no text")
    return text_of(value, None)


def _written(schema: ConnectSchema) -> _Text:
    """Returns what writes the text of a value. A record, a list and a map are written as Java does it: heartbeats and other
    records of the source's own have such keys."""
    if schema.type == "struct":
        return _struct_text(schema)
    if schema.type in ("array", "map") and schema.value_schema is not None:
        item = _inner(schema.value_schema)
        if schema.type == "array":
            return lambda values: f"[{', '.join([item(value) for value in values])}]"
        return lambda values: "{" + ", ".join([f"{key}={item(value)}" for key, value in values.items()]) + "}"
    if schema.type == "bytes" and schema.name != DECIMAL:
        raise CdcError(NO_FORM, "bytes have no text", hint="Name the ByteArrayConverter, or leave the column out.")
    return lambda value: _checked_text(value, schema)


def _checked_text(value: Any, schema: ConnectSchema) -> str:
    try:
        return text_of(value, schema)
    except DataError as error:
        raise ValueError(str(error)) from None


def _inner(schema: ConnectSchema) -> _Text:
    if schema.type == "bytes" and schema.name != DECIMAL:
        return lambda value: text_of(value, schema)
    write = _written(schema)
    return lambda value: "null" if value is None else write(value)


def _struct_text(schema: ConnectSchema) -> _Text:
    writes = [(name, _inner(of)) for name, of in schema.fields]

    def write(value: Any) -> str:
        row = value if isinstance(value, tuple) else [value.get(name) for name, _ in writes]
        parts = [f"{name}={text(item)}" for (name, text), item in zip(writes, row, strict=True) if item is not None]
        return f"Struct{{{','.join(parts)}}}"

    return write


class TextReader:
    """Reads text."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding

    def read(self, data: bytes | None, headers: Headers = ()) -> Typed:
        if data is None:
            return NOTHING
        try:
            return Typed(_SCHEMA, data.decode(self._encoding))
        except UnicodeDecodeError:
            raise unreadable(f"the bytes are no text in {self._encoding}") from None


FORMATS: Final = (
    Format(
        (STRING, "StringConverter", "string"),
        lambda settings: TextFormat(ENCODINGS[settings["converter.encoding"].lower()]),
        lambda settings, _: TextReader(ENCODINGS[settings["converter.encoding"].lower()]),
        "The text of a single value.",
        keys=(
            setting("converter.encoding", "UTF8", "The encoding of the text.", validator=one_of_any_case(*ENCODINGS)),
        ),
        single="the text of a single value",
        is_strict=lambda _: False,
    ),
)
