"""Reads keys and values of records as the converters of a config say: framed Avro, or Connect's JSON with or without schemas."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol

from cdcworker.connectors.record_sink.errors import RECORD_UNREADABLE
from cdcworker.connectors.transforms.avro_form import schema_of
from cdcworker.connectors.transforms.bounded_cache import BoundedCache
from cdcworker.connectors.transforms.data import ConnectRecord, ConnectSchema, DataError, Field, Header
from cdcworker.schemas.avro import unframe
from cdcworker.schemas.decode import Prepared, decode_prepared, prepare
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.log import StoredSchema
from cdcworker.schemas.record_format import WireFormat
from cdcworker.schemas.topics import unescape
from cdcworker.schemas.untrusted.json_text import PROCESS, JsonRefused, parse_json

SCHEMAS_MAX: Final = 1_024
"""Schemas of one side of records that are kept ready."""
Convert = Callable[[Any], Any]
_TYPES: Final = {"float": "float32", "double": "float64"}
"""Types of Connect's JSON whose names are others in its data model."""
_PLAIN: Final = frozenset(
    ("int8", "int16", "int32", "int64", "float32", "float64", "boolean", "string", "bytes", "array", "map", "struct")
)


class Typed(NamedTuple):
    """A value with its schema, which is None where there is none."""

    schema: ConnectSchema | None
    value: Any


NOTHING: Final = Typed(None, None)
_BYTES: Final = ConnectSchema("bytes", optional=True)


class FindsSchemas(Protocol):
    """Finds the schema of an id."""

    def stored(self, id: int) -> StoredSchema:
        """Raises CdcError `schema.unknown_id`."""


class SharedSchemas:
    """One reader of the schema log for several threads."""

    def __init__(self, reader: FindsSchemas) -> None:
        self._reader = reader
        self._lock = threading.Lock()

    def stored(self, id: int) -> StoredSchema:
        with self._lock:
            return self._reader.stored(id)


class ReadsValues(Protocol):
    """Reads the keys or the values of records."""

    def read(self, data: bytes | None) -> Typed:
        """Raises CdcError of kind `data`."""


class RecordReader:
    """Makes records of what Kafka holds. One thread uses it."""

    def __init__(self, key: ReadsValues, value: ReadsValues, schemas: FindsSchemas | None, *, plain: bool) -> None:
        """`plain`: the target may take messages as Kafka holds them, with the schemas that `schemas` finds."""
        self.schemas = schemas
        self.is_plain = plain
        self._key = key
        self._value = value

    def read(self, message: Any) -> ConnectRecord:
        """Returns the record of a message. Raises CdcError of kind `data`, without values."""
        key, value = self._key.read(message.key()), self._value.read(message.value())
        return ConnectRecord(
            message.topic(),
            key.schema,
            key.value,
            value.schema,
            value.value,
            tuple(Header(name, None, data) for name, data in message.headers() or ()),
            message.timestamp()[1],
            message.partition(),
            message.offset(),
        )


def converted(key: WireFormat, value: WireFormat, schemas: FindsSchemas) -> RecordReader:
    """Returns what reads records whose keys and values are written in these forms."""
    return RecordReader(reader_of(key, schemas), reader_of(value, schemas), schemas, plain=not (key.json or value.json))


def unconverted() -> RecordReader:
    """Returns what reads keys and values as the bytes that they are."""
    return RecordReader(BytesReader(), BytesReader(), None, plain=True)


class BytesReader:
    """Leaves bytes as they are."""

    def read(self, data: bytes | None) -> Typed:
        return NOTHING if data is None else Typed(_BYTES, data)


def reader_of(wire: WireFormat, schemas: FindsSchemas) -> ReadsValues:
    """Returns the reader of what is written in this form."""
    return JsonReader(schemas=wire.schemas) if wire.json else AvroReader(schemas)


# Avro


class _Known(NamedTuple):
    prepared: Prepared
    schema: ConnectSchema
    renamed: Convert | None


class AvroReader:
    """Reads Confluent's frame with the schemas of the log. Names that Avro does not allow are as they were before."""

    def __init__(self, schemas: FindsSchemas) -> None:
        self._schemas = schemas
        self._known: BoundedCache[int, _Known] = BoundedCache(SCHEMAS_MAX)

    def read(self, data: bytes | None) -> Typed:
        if data is None:
            return NOTHING
        id, offset = unframe(data)
        known = self._known.get(id) or self._learned(id)
        value = decode_prepared(known.prepared, data[offset:])
        return Typed(known.schema, value if known.renamed is None else known.renamed(value))

    def _learned(self, id: int) -> _Known:
        avro = self._schemas.stored(id).schema
        try:
            schema, renamed = unescaped(schema_of(avro))
        except DataError as error:
            raise CdcError(RECORD_UNREADABLE, str(error), where={"id": id}) from None
        known = self._known[id] = _Known(prepare(avro), schema, renamed)
        return known


def unescaped(schema: ConnectSchema) -> tuple[ConnectSchema, Convert | None]:
    """Returns the schema with the names of fields as they were before they were made names of Avro, and what does the same to
    its values; None where no name differs."""
    if schema.type in ("array", "map") and schema.value_schema is not None:
        inner, convert = unescaped(schema.value_schema)
        if convert is None:
            return schema, None
        of_items = _each(convert) if schema.type == "array" else _each_value(convert)
        return replace(schema, value_schema=inner), of_items
    if schema.type != "struct":
        return schema, None
    fields: list[Field] = []
    steps: list[tuple[str, str, Convert | None]] = []
    for name, of in schema.fields:
        inner, convert = unescaped(of)
        fields.append(Field(unescape(name), inner))
        steps.append((name, fields[-1].name, convert))
    if all(name == real and convert is None for name, real, convert in steps):
        return schema, None
    return replace(schema, fields=tuple(fields)), _renaming(steps)


def _each(convert: Convert) -> Convert:
    return lambda items: None if items is None else [convert(item) for item in items]


def _each_value(convert: Convert) -> Convert:
    return lambda items: None if items is None else {key: convert(item) for key, item in items.items()}


def _renaming(steps: Sequence[tuple[str, str, Convert | None]]) -> Convert:
    def rename(value: Any) -> Any:
        if value is None:
            return None
        return {real: value.get(name) if convert is None else convert(value.get(name)) for name, real, convert in steps}

    return rename


# JSON


class JsonReader:
    """Reads Connect's JSON: with `schemas` an object of schema and payload, without them any value."""

    def __init__(self, *, schemas: bool) -> None:
        self._has_schemas = schemas
        self._known: BoundedCache[str, tuple[ConnectSchema, Convert]] = BoundedCache(SCHEMAS_MAX)

    def read(self, data: bytes | None) -> Typed:
        if data is None:
            return NOTHING
        try:
            parsed = parse_json(data, PROCESS)
            if not self._has_schemas:
                return Typed(None, parsed)
            if not isinstance(parsed, dict) or parsed.keys() != {"schema", "payload"}:
                raise CdcError(RECORD_UNREADABLE, "the JSON is no object of schema and payload alone")
            if parsed["schema"] is None:
                return Typed(None, parsed["payload"])
            schema, convert = self._schema(parsed["schema"])
            return Typed(schema, convert(parsed["payload"]))
        except JsonRefused as error:
            raise CdcError(RECORD_UNREADABLE, f"the JSON cannot be read: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            text = f"the payload does not fit its schema: {type(error).__name__}"
            raise CdcError(RECORD_UNREADABLE, text) from None

    def _schema(self, given: Mapping[str, Any]) -> tuple[ConnectSchema, Convert]:
        text = repr(given)
        known = self._known.get(text)
        if known is None:
            schema = _connect_schema(given)
            known = self._known[text] = (schema, _reading(schema))
        return known


def _connect_schema(given: Mapping[str, Any]) -> ConnectSchema:
    kind = _TYPES.get(given["type"], given["type"])
    if kind not in _PLAIN:
        raise ValueError("unknown type")
    inner = given.get("items") or given.get("values")
    return ConnectSchema(
        kind,
        bool(given.get("optional", False)),
        given.get("default"),
        given.get("name"),
        given.get("version"),
        given.get("doc"),
        given.get("parameters"),
        tuple(Field(field["field"], _connect_schema(field)) for field in given.get("fields", ())),
        _connect_schema(given["keys"]) if kind == "map" else None,
        _connect_schema(inner) if inner is not None and kind in ("array", "map") else None,
    )


def _reading(schema: ConnectSchema) -> Convert:
    """Returns what makes values of what the JSON of a schema holds: bytes are base64 there."""
    if schema.type == "struct":
        steps = [(name, _reading(of)) for name, of in schema.fields]
        return lambda value: None if value is None else {name: read(value.get(name)) for name, read in steps}
    if schema.type in ("array", "map") and schema.value_schema is not None:
        read = _reading(schema.value_schema)
        return _each(read) if schema.type == "array" else _each_value(read)
    if schema.type == "bytes":
        return lambda value: base64.b64decode(value, validate=True) if isinstance(value, str) else value
    if schema.type in ("float32", "float64"):
        return lambda value: None if value is None else float(value)
    return lambda value: value
