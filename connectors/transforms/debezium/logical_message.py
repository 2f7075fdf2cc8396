"""DecodeLogicalDecodingMessageContent: the JSON in a message of `pg_logical_emit_message` as the row of an insert."""

from __future__ import annotations

from typing import Any, Final

from cdcworker.connectors.transforms.bounded_cache import BoundedCache
from cdcworker.connectors.transforms.data import ConnectRecord, ConnectSchema, DataError, Field
from cdcworker.connectors.transforms.debezium.envelope import ENVELOPE
from cdcworker.connectors.transforms.debezium.json_shape import JsonShapes, NoShapeError, ShapeOptions
from cdcworker.connectors.transforms.transform import SCHEMAS_MAX

_MESSAGE_VALUE: Final = ".MessageValue"
"""What the name of the schema of a message's record ends with."""


class DecodeLogicalDecodingMessageContent:
    """An envelope whose `after` is the content of a message, so that EventRouter takes it for a row of the outbox table."""

    def __init__(self, *, includes_null: bool) -> None:
        self._shapes = JsonShapes(ShapeOptions(null_as_bytes=includes_null))
        self._envelopes: BoundedCache[tuple[int, int], tuple[ConnectSchema, ConnectSchema, ConnectSchema]] = (
            BoundedCache(SCHEMAS_MAX)
        )

    def apply(self, record: ConnectRecord) -> ConnectRecord | None:
        schema = record.value_schema
        if record.value is None or schema is None or not (schema.name or "").endswith(_MESSAGE_VALUE):
            return record
        message = record.value.get("message")
        content = message.get("content") if message is not None else None
        if not isinstance(content, bytes):
            raise DataError("The content of a logical decoding message is non-binary")
        try:
            shape, after = self._shapes.read(content, None)
        except NoShapeError as error:
            raise DataError(f"The content of a logical decoding message cannot be read: {error}") from None
        fields: dict[str, Any] = {name: value for name, value in record.value.items() if name != "message"}
        decoded = record.with_value(self._envelope(schema, shape), {**fields, "op": "c", "after": after})
        decoded.key_schema = decoded.key = None
        return decoded

    def _envelope(self, schema: ConnectSchema, shape: ConnectSchema) -> ConnectSchema:
        place = (id(schema), id(shape))
        found = self._envelopes.get(place)
        if found is None:
            kept = tuple(field for field in schema.fields if field.name != "message")
            made = ConnectSchema("struct", name=f"{schema.name}{ENVELOPE}", fields=(*kept, Field("after", shape)))
            found = self._envelopes[place] = (schema, shape, made)
        return found[2]
