"""Reads keys and values of records as the converters of a config say."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from cdcworker.connectors.converters.config import format_named, reader_of
from cdcworker.connectors.converters.shipped import DEFAULT
from cdcworker.connectors.external_registry.schemas import schemas_of
from cdcworker.connectors.formats.byte_array import BytesReader
from cdcworker.connectors.formats.format import FindsSchemas, ReadsValues
from cdcworker.connectors.transforms.data import ConnectRecord, Header
from cdcworker.schemas.log import StoredSchema


class SharedSchemas:
    """One reader of the schema log for several threads."""

    def __init__(self, reader: FindsSchemas) -> None:
        self._reader = reader
        self._lock = threading.Lock()

    def stored(self, id: int) -> StoredSchema:
        with self._lock:
            return self._reader.stored(id)


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
        headers = message.headers() or ()
        key, value = self._key.read(message.key()), self._value.read(message.value(), headers)
        return ConnectRecord(
            message.topic(),
            key.schema,
            key.value,
            value.schema,
            value.value,
            tuple(Header(name, None, data) for name, data in headers),
            message.timestamp()[1],
            message.partition(),
            message.offset(),
        )


def converted(config: Mapping[str, Any], schemas: FindsSchemas) -> RecordReader:
    """Returns what reads records whose keys and values are written as a validated config says."""
    plain = format_named(config, "key") is format_named(config, "value") is DEFAULT
    of_values = schemas_of(config, "value", schemas)
    key = reader_of(config, "key", schemas_of(config, "key", schemas))
    return RecordReader(key, reader_of(config, "value", of_values), of_values, plain=plain)


def unconverted() -> RecordReader:
    """Returns what reads keys and values as the bytes that they are."""
    return RecordReader(BytesReader(), BytesReader(), None, plain=True)
