"""What the formats of single values share: the schema of what is to be written, and a writer without a frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from cdcworker.connectors.transforms.avro_form import schema_of
from cdcworker.connectors.transforms.data import DATE, DECIMAL, TIME, TIMESTAMP, ConnectSchema, DataError
from cdcworker.schemas.avro import TypedSchema
from cdcworker.schemas.change import Avro
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.record_format import NO_FORM, ConnectJsonFormat

LOGICAL: Final = frozenset((DATE, DECIMAL, TIME, TIMESTAMP))
"""Types whose values Kafka Connect's plain converters do not take."""
_IN_HEADERS: Final = ConnectJsonFormat(schemas=False, numeric=True)


def connect_schema_of(kind: Avro) -> ConnectSchema:
    """Returns the schema of an Avro type. Raises CdcError `schema.no_form`."""
    try:
        return schema_of(kind)
    except DataError as error:
        raise CdcError(NO_FORM, str(error)) from None


def header_writer(kind: Avro | None) -> Callable[[Any], bytes]:
    """Returns what writes values in headers, as Kafka Connect's default converter of headers does."""
    return _IN_HEADERS.writer(kind).body


class UnframedWriter:
    """Writes values of one type by a function, without a schema."""

    schema: Avro | TypedSchema | None = None
    null: bytes | None = None

    def __init__(self, kind: Avro | None, body: Callable[[Any], bytes]) -> None:
        self.body = body
        self._kind = kind
        self._header: Callable[[Any], bytes] | None = None

    def bind(self, id: int) -> None: ...

    def wrap(self, body: bytes) -> bytes:
        return body

    def in_header(self, value: Any) -> bytes:
        self._header = self._header or header_writer(self._kind)
        return self._header(value)
