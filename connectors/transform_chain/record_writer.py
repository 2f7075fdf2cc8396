"""Writes keys and values of any schema: framed Avro, or Connect's JSON; and headers as the SimpleHeaderConverter does."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from cdcworker.connectors.transforms.avro_form import JSON_WRITTEN, REGISTERED, WRITTEN, avro_of
from cdcworker.connectors.transforms.data import ConnectSchema, DataError, Header, class_name
from cdcworker.connectors.transforms.values import text_of
from cdcworker.schemas.avro import frame
from cdcworker.schemas.avro_binary import compile_type
from cdcworker.schemas.change import Avro
from cdcworker.schemas.connect_json import compile_json, connect_schema
from cdcworker.schemas.record_format import WireFormat


class WritesValues(Protocol):
    """Writes keys or values of one schema."""

    def write(self, value: Any) -> tuple[bytes | None, bytes | None]:
        """Returns the body of a value and the whole."""


class _NoValue:
    """Writes what has neither a schema nor a value."""

    def write(self, value: Any) -> tuple[None, None]:
        return None, None


NO_VALUE: Final = _NoValue()


class ValueWriter:
    """Writes keys or values of one schema. `registered` is the Avro type to register, None for JSON. Raises DataError for a
    schema that cannot be written."""

    def __init__(self, schema: ConnectSchema | None, wire: WireFormat) -> None:
        self.schema = schema
        self.registered: Avro | None = None
        self._head = self._tail = b""
        self._null: bytes | None = None
        self.body: Callable[[Any], bytes]
        if not wire.json:
            if schema is None:
                raise DataError("A value without a schema cannot be written as Avro; the JsonConverter can write it")
            self.registered = avro_of(schema, REGISTERED)
            self.body = compile_type(avro_of(schema, WRITTEN))
            return
        described: Any = None
        if schema is None:
            self.body = _schemaless
        else:
            kind = avro_of(schema, JSON_WRITTEN)
            write = compile_json(kind, numeric=wire.numeric)
            self.body = lambda value: write(value).encode()
            described = connect_schema(kind, optional=schema.optional)
        if wire.schemas:
            text = json.dumps(described, separators=(",", ":"), ensure_ascii=False)
            self._head, self._tail = b'{"schema":' + text.encode() + b',"payload":', b"}"
        if schema is not None:
            self._null = b"null"

    def bind(self, id: int) -> None:
        """Sets the schema id."""
        self._head = frame(id, b"")

    def wrap(self, body: bytes) -> bytes:
        """Returns the body with its frame."""
        return self._head + body + self._tail

    def write(self, value: Any) -> tuple[bytes | None, bytes | None]:
        """Returns the body of a value and the whole. A null is no record of Avro's, and one of JSON's if it has a schema."""
        if value is None:
            return self._null, None if self._null is None else self.wrap(self._null)
        body = self.body(value)
        return body, self.wrap(body)


def _schemaless(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=_plain).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    raise DataError(f"A value of class {class_name(value)} without a schema cannot be written as JSON")


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
