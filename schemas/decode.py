"""The reference decoder: framed records to raw Avro values, by fastavro without logical types."""

from __future__ import annotations

import io
from typing import Any

import fastavro
from cdcworker.schemas.avro import unframe, without_logical_types
from cdcworker.schemas.change import Avro
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.schemas.log import SchemaLog

UNKNOWN_ID = declare(
    "schema.unknown_id",
    "data",
    "A record names a schema id that the schema log does not hold",
    "Check that the record comes from this cluster, and that the schema topic was not deleted.",
)
UNDECODABLE = declare(
    "schema.undecodable",
    "data",
    "A record does not decode with its schema",
    "Look at the record with `kcat`, and at the schema of its id: GET /schemas/ids/{id}.",
)

Prepared = Any
"""A schema as parsed by fastavro, to be reused for many records."""


def prepare(schema: Avro) -> Prepared:
    """Parses a schema for `decode_prepared`."""
    return fastavro.parse_schema(without_logical_types(schema))


def decode_prepared(prepared: Prepared, body: bytes) -> Any:
    """Decodes one unframed body. Raises CdcError `schema.undecodable` if it does not fit the schema exactly."""
    buffer = io.BytesIO(body)
    try:
        value = fastavro.schemaless_reader(buffer, prepared, None)
    except (EOFError, ValueError, TypeError, IndexError, KeyError, OverflowError) as exc:
        raise CdcError(UNDECODABLE, f"the body does not fit the schema: {type(exc).__name__}") from exc
    if buffer.tell() != len(body):
        raise CdcError(UNDECODABLE, f"{len(body) - buffer.tell()} bytes are left after the value")
    return value


def decode(schema: Avro, body: bytes) -> Any:
    """Decodes one unframed body to raw values: bytes stay bytes, and timestamps numbers."""
    return decode_prepared(prepare(schema), body)


class RecordDecoder:
    """Decodes framed records with the schemas of a schema log; it caches at most `SCHEMAS_MAX` schemas (INV-10)."""

    SCHEMAS_MAX = 4096

    def __init__(self, log: SchemaLog) -> None:
        self._log = log
        self._prepared: dict[int, Prepared] = {}

    def decode(self, data: bytes | None) -> Any:
        """Returns the value of one framed record, None for a tombstone.

        Raises CdcError `schema.frame`, `schema.unknown_id` or `schema.undecodable`.
        """
        if data is None:
            return None
        id, offset = unframe(data)
        prepared = self._prepared.get(id)
        if prepared is None:
            stored = self._log.by_id(id)
            if stored is None:
                raise CdcError(UNKNOWN_ID, "the schema id is not in the schema log", where={"id": id})
            if len(self._prepared) >= self.SCHEMAS_MAX:
                self._prepared.clear()
            prepared = self._prepared[id] = prepare(stored.schema)
        return decode_prepared(prepared, data[offset:])
