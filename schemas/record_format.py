"""Record formats: how a connector's keys and values are serialized, with or without envelope, to which topics. Avro and Connect's JSON are
here, since the envelope is made for them; `connectors/formats` has the others."""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, runtime_checkable

from cdcworker.schemas.avro import TypedSchema, frame
from cdcworker.schemas.change import Avro, Change, JsonObject
from cdcworker.schemas.connect_json import compile_fields, compile_json, connect_schema
from cdcworker.schemas.encode import encode_parts
from cdcworker.schemas.envelope import TRANSACTION_BLOCK
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.schemas.patterns import Pattern

UNKNOWN_FIELD = declare(
    "schema.unknown_field",
    "config",
    "A field that is to be added does not exist",
    "Name op, ts_ms, ts_us, ts_ns, or a field of source or transaction.",
)
NO_FORM = declare(
    "schema.no_form",
    "data",
    "What is to be written has no form in the format that the converter names",
    "Name a converter that writes records with fields, leave the column out with column.exclude.list, or add a transform that leaves"
    " a single value.",
)

Deletes = Literal["drop", "tombstone", "rewrite"]
"""What a delete becomes without an envelope (`delete.tombstone.handling.mode` of ExtractNewRecordState)."""
CLOCKS: Final = {"ts_ms": 1_000_000, "ts_us": 1000, "ts_ns": 1}
"""The processing times of the envelope, with their units in ns."""
_OWN_FIELDS: Final = ("op", *CLOCKS)
_TRANSACTION_FIELDS: Final = tuple(field["name"] for field in TRANSACTION_BLOCK["fields"])


# Keys and values

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
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=_text_of_bytes)


def _text_of_bytes(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return binascii.b2a_base64(value, newline=False).decode()
    raise TypeError(f"a value of class {type(value).__name__} without a schema has no JSON")


# Flat rows and topics


@dataclass(frozen=True, slots=True)
class AddedField:
    """A field of the envelope that is added to a flat row or as a header; `struct` is empty, `source` or
    `transaction`."""

    struct: str
    field: str
    name: str

    @classmethod
    def parse(cls, text: str, prefix: str) -> AddedField:
        """Parses `op`, `source.ts_ms` or `lsn:position` (with a new name). Raises ValueError for another form."""
        match = re.fullmatch(r"(?:(source|transaction)\.)?([A-Za-z_]+)(?::([A-Za-z_][A-Za-z0-9_.\-]*))?", text.strip())
        if match is None:
            raise ValueError("is no field name")
        struct, field, alias = match.groups()
        name = prefix + (alias or (f"{struct}_{field}" if struct else field))
        if not struct:
            struct = "transaction" if field in _TRANSACTION_FIELDS else "" if field in _OWN_FIELDS else "source"
        return cls(struct, field, name)

    def type_in(self, source: Mapping[str, Any]) -> Any:
        """Returns the Avro type of the field without null. Raises CdcError `schema.unknown_field`."""
        if not self.struct and self.field in _OWN_FIELDS:
            return "string" if self.field == "op" else "long"
        block = {"source": source, "transaction": TRANSACTION_BLOCK}.get(self.struct, {"fields": ()})
        for field in block["fields"]:
            if field["name"] == self.field:
                return _plain(field["type"])
        raise CdcError(UNKNOWN_FIELD, "the record has no such field", where={"field": self.field})

    def value_of(self, change: Change, clock_ns: int) -> Any:
        """Returns the value of the field in a change; `clock_ns` is the processing time."""
        if self.struct == "source":
            return change.source.get(self.field)
        if self.struct == "transaction":
            return (change.transaction or {}).get(self.field)
        return change.op if self.field == "op" else clock_ns // CLOCKS[self.field]


@dataclass(frozen=True, slots=True)
class FlatFormat:
    """Rows instead of envelopes, as Debezium's ExtractNewRecordState makes them.

    `trailing`: after the record of a delete follows the tombstone that the source would write.
    """

    deletes: Deletes = "tombstone"
    trailing: bool = False
    fields: tuple[AddedField, ...] = ()
    headers: tuple[AddedField, ...] = ()


GROUP: Final = re.compile(r"\$(?:\{([A-Za-z][A-Za-z0-9]*)\}|([0-9]))")
"""A group in a replacement: its name or its number."""


@dataclass(frozen=True, slots=True)
class RegexRoute:
    """Renames a topic that the expression matches as a whole, as Kafka Connect's RegexRouter does."""

    regex: Pattern
    replacement: str
    """With Java's `$1` and `${name}`; one digit, since a topic name has no more than nine groups."""

    def apply(self, topic: str) -> str:
        """Returns the new name of a topic, or the same one if it does not match."""
        match = self.regex.fullmatch(topic)
        if match is None:
            return topic
        return GROUP.sub(lambda found: match.group(found[1] or int(found[2])), self.replacement)


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """The format of a connector's records: serialization, flat rows or envelopes, and renamed topics."""

    key: WireFormat = AVRO
    value: WireFormat = AVRO
    flat: FlatFormat | None = None
    routes: tuple[RegexRoute, ...] = ()
    shared: bool = False
    """Tells whether tables with the same columns may be routed to one topic."""


def _plain(kind: Any) -> Any:
    """Returns a type without null and without a default."""
    if isinstance(kind, list):
        kind = next(branch for branch in kind if branch != "null")
    return {key: value for key, value in kind.items() if key != "connect.default"} if isinstance(kind, dict) else kind
