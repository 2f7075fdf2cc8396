"""Writes keys and values of any schema in a wire format, and headers as the SimpleHeaderConverter does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, Final, Protocol

from cdcworker.connectors.transforms.avro_form import JSON_WRITTEN, REGISTERED, WRITTEN, avro_of
from cdcworker.connectors.transforms.data import ConnectSchema, DataError, Header
from cdcworker.connectors.transforms.values import text_of
from cdcworker.schemas.avro import TypedSchema, frame
from cdcworker.schemas.avro_binary import compile_type
from cdcworker.schemas.change import Avro
from cdcworker.schemas.record_format import AVRO, Headers, RecordWriter, WireFormat, WritesHeaders


class WritesValues(Protocol):
    """Writes keys or values of one schema. `says`: records have headers of theirs."""

    says: bool

    def write(self, value: Any) -> tuple[bytes | None, bytes | None]:
        """Returns the body of a value and the whole."""

    def headers(self, value: Any) -> Headers:
        """Returns what the record says in headers beside its value."""


class _NoValue:
    """Writes what has neither a schema nor a value."""

    says = False

    def write(self, value: Any) -> tuple[None, None]:
        return None, None

    def headers(self, value: Any) -> Headers:
        return ()


NO_VALUE: Final = _NoValue()


class ValueWriter:
    """Writes keys or values of one schema. `registered` is the schema to register, None: there is none. Raises DataError for a
    schema that cannot be written."""

    def __init__(self, schema: ConnectSchema | None, wire: WireFormat) -> None:
        self.schema = schema
        self._record = _writer_of(schema, wire)
        self.registered = self._record.schema
        self.says = isinstance(self._record, WritesHeaders)

    def bind(self, id: int) -> None:
        """Sets the schema id. Whoever has a copy keeps the id that it had."""
        self._record = copy(self._record)
        self._record.bind(id)

    def write(self, value: Any) -> tuple[bytes | None, bytes | None]:
        """Returns the body of a value and the whole. A null is no record of Avro's, and one of JSON's if it has a schema."""
        record = self._record
        body = record.null if value is None else record.body(value)
        return body, None if body is None else record.wrap(body)

    def in_header(self, value: Any) -> bytes:
        """Returns a value as a header holds it."""
        return self._record.in_header(value)

    def headers(self, value: Any) -> Headers:
        """Returns what the record says in headers beside its value."""
        record: Any = self._record
        found: Headers = record.headers(value) if self.says and value is not None else ()
        return found


def _writer_of(schema: ConnectSchema | None, wire: WireFormat) -> RecordWriter:
    if wire == AVRO:
        if schema is None:
            raise DataError("A value without a schema cannot be written as Avro; the JsonConverter can write it")
        return AvroValueWriter(schema)
    kind = None if schema is None else avro_of(schema, JSON_WRITTEN)
    return wire.writer(kind, optional=schema is not None and schema.optional)


class AvroValueWriter:
    """Writes framed Avro of values whose fields have their own names, and registers the type with names that Avro allows."""

    null: bytes | None = None

    def __init__(self, schema: ConnectSchema) -> None:
        self.schema: Avro | TypedSchema | None = avro_of(schema, REGISTERED)
        self.body: Callable[[Any], bytes] = compile_type(avro_of(schema, WRITTEN))
        self._frame = b""

    def bind(self, id: int) -> None:
        self._frame = frame(id, b"")

    def wrap(self, body: bytes) -> bytes:
        return self._frame + body

    def in_header(self, value: Any) -> bytes:
        return self._frame + self.body(value)


def header_bytes(header: Header) -> bytes | None:
    """Returns a header as the SimpleHeaderConverter writes it: text, and no value for null."""
    if header.value is None:
        return None
    if header.schema is None and isinstance(header.value, bytes):
        return header.value
    return text_of(header.value, header.schema).encode()


def fields_of(names: tuple[str, ...], values: tuple[Any, ...]) -> Mapping[str, Any]:
    """Returns a row as a struct."""
    return dict(zip(names, values, strict=True))
