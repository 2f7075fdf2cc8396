"""Wire formats: how keys or values are written of which the Avro type is known. Avro and Connect's JSON are here, since the
envelope is made for them; `connectors/formats` has the others."""

from __future__ import annotations

import binascii
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

from cdcworker.schemas.avro import frame
from cdcworker.schemas.change import Avro, JsonObject
from cdcworker.schemas.connect_json import compile_fields, compile_json, connect_schema
from cdcworker.schemas.encode import encode_parts
from cdcworker.schemas.errors import declare
from cdcworker.schemas.typed_schema import TypedSchema

NO_FORM = declare(
    "schema.no_form",
    "data",
    "What is to be written has no form in the format that the converter names",
    "Name a converter that writes records with fields, leave the column out with column.exclude.list, or add a transform that leaves"
    " a single value.",
)

Headers = Sequence[tuple[str, bytes]]


class RecordWriter(Protocol):
    """Writes keys or values of one type, a record as a mapping or as a tuple in the order of its fields."""

    schema: Avro | TypedSchema | None
    """What is registered before the first record is written; None: nothing."""
    null: bytes | None
    """The body of a null that has a schema; None: a null is a record without a key or value."""

    def bind(self, id: int) -> None:
        """Sets the id that the registered schema has got."""

    def body(self, value: Any) -> bytes:
        """Returns the encoded value without its frame: what decides on the partition of a key. Raises one of `BAD_VALUE` for
        a value that does not fit."""

    def wrap(self, body: bytes) -> bytes:
        """Returns the body with its frame."""

    def in_header(self, value: Any) -> bytes:
        """Returns the value as a header holds it."""


@runtime_checkable
class WritesHeaders(Protocol):
    """A `RecordWriter` whose records say something in headers too."""

    def headers(self, value: Any) -> Headers:
        """Returns the headers of a record with this value."""


class WireFormat(Protocol):
    """The serialization of keys or of values. Equal ones write the same."""

    def writer(self, kind: Avro | None, *, optional: bool = False) -> RecordWriter:
        """Returns the writer of an Avro type whose fields have their own names and in which no type is only named; of values
        without a schema for None. Raises CdcError `schema.no_form` for a type that has no form."""


@dataclass(frozen=True, slots=True)
class AvroFormat:
    """Avro in Confluent's framing. Its types have escaped names, and name what was described before: they are registered as
    they are."""

    def writer(self, kind: Avro | None, *, optional: bool = False) -> RecordWriter:
        assert isinstance(kind, dict)
        return _AvroWriter(kind)


AVRO: Final = AvroFormat()
"""The default serialization."""


@dataclass(frozen=True, slots=True)
class ConnectJsonFormat:
    """Kafka Connect's JSON with or without schemas. With `numeric` decimals are numbers instead of base64."""

    schemas: bool = True
    numeric: bool = False

    def writer(self, kind: Avro | None, *, optional: bool = False) -> RecordWriter:
        return _JsonWriter(kind, self, optional=optional)


class _AvroWriter:
    """Writes framed Avro."""

    null: bytes | None = None

    def __init__(self, schema: JsonObject) -> None:
        self.schema: Avro | TypedSchema | None = schema
        self.body: Callable[[Any], bytes] = encode_parts(schema["fields"])
        self._frame = b""

    def bind(self, id: int) -> None:
        self._frame = frame(id, b"")

    def wrap(self, body: bytes) -> bytes:
        return self._frame + body

    def in_header(self, value: Any) -> bytes:
        return self._frame + self.body(value)


class _JsonWriter:
    """Writes Connect's JSON."""

    schema: Avro | TypedSchema | None = None

    def __init__(self, kind: Avro | None, wire: ConnectJsonFormat, *, optional: bool) -> None:
        self._text = _text_of(kind, numeric=wire.numeric)
        # Connect's default converter of headers writes no schema, and decimals as numbers.
        self._header = _text_of(kind, numeric=True)
        self.null: bytes | None = None if kind is None else b"null"
        self._head, self._tail = b"", b""
        if wire.schemas:
            described = None if kind is None else connect_schema(kind, optional=optional)
            text = json.dumps(described, separators=(",", ":"), ensure_ascii=False)
            self._head, self._tail = b'{"schema":' + text.encode() + b',"payload":', b"}"

    def bind(self, id: int) -> None: ...

    def body(self, value: Any) -> bytes:
        return self._text(value).encode()

    def wrap(self, body: bytes) -> bytes:
        return self._head + body + self._tail

    def in_header(self, value: Any) -> bytes:
        return self._header(value).encode()


def _text_of(kind: Avro | None, *, numeric: bool) -> Callable[[Any], str]:
    if kind is None:
        return schemaless_text
    if isinstance(kind, dict) and kind["type"] == "record":
        return compile_fields([(field["name"], field["type"]) for field in kind["fields"]], numeric=numeric)
    return compile_json(kind, numeric=numeric)


def schemaless_text(value: Any) -> str:
    """Returns the JSON of a value without a schema: bytes are base64. Raises TypeError for what JSON does not have."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return binascii.b2a_base64(value, newline=False).decode()
    raise TypeError(f"a value of class {type(value).__name__} without a schema has no JSON")
