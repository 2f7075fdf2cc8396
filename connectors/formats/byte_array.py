"""Bytes as they are: Kafka Connect's ByteArrayConverter, and Debezium's BinaryDataConverter, which leaves all else to another
converter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from cdcworker.connectors.config.definition import one_of
from cdcworker.connectors.formats import connect_json
from cdcworker.connectors.formats.format import NOTHING, Format, Headers, Settings, Typed, setting
from cdcworker.connectors.formats.single_values import LOGICAL, UnframedWriter, connect_schema_of
from cdcworker.connectors.transforms.data import ConnectSchema
from cdcworker.schemas.change import Avro
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.record_format import NO_FORM, ConnectJsonFormat, RecordWriter, WireFormat

BYTES: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"
BINARY_DATA: Final = "io.debezium.converters.BinaryDataConverter"
_SCHEMA: Final = ConnectSchema("bytes", optional=True)
_DELEGATE: Final = "delegate.converter.type"
_DELEGATE_SCHEMAS: Final = "delegate.converter.type.schemas.enable"


@dataclass(frozen=True, slots=True)
class BytesFormat:
    """Bytes as they are; what is no bytes is written by `other`, if there is one."""

    other: WireFormat | None = None

    def writer(self, kind: Avro | None, *, optional: bool = False) -> RecordWriter:
        if kind is None:
            return UnframedWriter(None, _bytes_of)
        schema = connect_schema_of(kind)
        if schema.type == "bytes" and schema.name not in LOGICAL:
            return UnframedWriter(kind, _bytes_of)
        if self.other is not None:
            return self.other.writer(kind, optional=optional)
        raise CdcError(NO_FORM, f"the converter writes bytes only, and not {schema.type}")


def _bytes_of(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("no bytes")
    return bytes(value)


class BytesReader:
    """Leaves bytes as they are."""

    def read(self, data: bytes | None, headers: Headers = ()) -> Typed:
        return NOTHING if data is None else Typed(_SCHEMA, data)


def _with_delegate(settings: Settings) -> WireFormat:
    if not settings[_DELEGATE]:
        return BytesFormat()
    return BytesFormat(ConnectJsonFormat(schemas=settings[_DELEGATE_SCHEMAS]))


FORMATS: Final = (
    Format(
        (BYTES, "ByteArrayConverter", "bytes"),
        lambda _: BytesFormat(),
        lambda _settings, _schemas: BytesReader(),
        "Bytes as they are.",
        single="bytes",
        is_strict=lambda _: True,
    ),
    Format(
        (BINARY_DATA, "BinaryDataConverter", "io.debezium.converters.ByteArrayConverter", "io.debezium.converters.ByteBufferConverter"),
        _with_delegate,
        lambda _settings, _schemas: BytesReader(),
        "Bytes as they are, and all else by another converter.",
        keys=(
            setting(
                _DELEGATE, "", "The converter of what is no bytes: heartbeats, say.",
                validator=one_of("", connect_json.JSON), recommended=(connect_json.JSON,),
            ),
            setting(_DELEGATE_SCHEMAS, True, "Whether that converter writes an object with schema and payload."),
        ),
        single="bytes",
        is_strict=lambda settings: not settings[_DELEGATE],
    ),
)  # fmt: skip
