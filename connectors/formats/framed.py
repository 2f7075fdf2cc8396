"""What the formats of Confluent's registry share: a frame with the schema's id before the body."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from cdcworker.connectors.formats.format import FindsSchemas
from cdcworker.connectors.formats.single_values import header_writer
from cdcworker.schemas.avro import SchemaType, TypedSchema, frame, unframe
from cdcworker.schemas.change import Avro
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.log import OTHER_TYPE, StoredSchema

DEPTH_MAX: Final = 64
"""Levels of a schema that somebody else has written."""
NODES_MAX: Final = 10_000
"""Parts of such a schema, where one that is referred to counts each time."""


class FramedWriter:
    """Writes values of one type by a function, behind the id of their schema and `head`."""

    def __init__(
        self,
        kind: Avro,
        schema: TypedSchema,
        body: Callable[[Any], bytes],
        *,
        head: bytes = b"",
        null: bytes | None = None,
    ) -> None:
        self.schema: Avro | TypedSchema | None = schema
        self.null = null
        self.body = body
        self._kind = kind
        self._after_id = head
        self._head = b""
        self._header: Callable[[Any], bytes] | None = None

    def bind(self, id: int) -> None:
        self._head = frame(id, self._after_id)

    def wrap(self, body: bytes) -> bytes:
        return self._head + body

    def in_header(self, value: Any) -> bytes:
        self._header = self._header or header_writer(self._kind)
        return self._header(value)


def framed_schema(data: bytes, schemas: FindsSchemas, type: SchemaType) -> tuple[StoredSchema, int]:
    """Returns the schema of a framed record, and where its frame ends. Raises CdcError."""
    id, offset = unframe(data)
    stored = schemas.stored(id)
    if stored.type != type:
        text = f"the record's schema is of type {stored.type}, and the converter reads {type}"
        raise CdcError(OTHER_TYPE, text, where={"id": id})
    return stored, offset
