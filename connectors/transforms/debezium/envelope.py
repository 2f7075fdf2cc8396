"""What Debezium's transforms share: whether a record has an envelope, and what is made once per schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from cdcworker.connectors.transforms.bounded_cache import BoundedCache
from cdcworker.connectors.transforms.data import ConnectRecord, ConnectSchema
from cdcworker.connectors.transforms.transform import SCHEMAS_MAX

ENVELOPE: Final = ".Envelope"
"""What the names of the schemas of envelopes end with."""
Made = TypeVar("Made")


def envelope_of(record: ConnectRecord) -> ConnectSchema | None:
    """Returns the schema of a record's envelope; None for a tombstone, and for a record of another form."""
    schema = record.value_schema
    if record.value is None or schema is None or not (schema.name or "").endswith(ENVELOPE):
        return None
    return schema


class PerSchema(Generic[Made]):
    """Keeps what is made of a schema, by the schema's identity: to compare schemas costs more than most transforms do."""

    def __init__(self, make: Callable[[ConnectSchema], Made]) -> None:
        self._make = make
        self._made: BoundedCache[int, tuple[ConnectSchema, Made]] = BoundedCache(SCHEMAS_MAX)

    def __call__(self, schema: ConnectSchema) -> Made:
        """Returns what is made of a schema. Raises what the making raises."""
        found = self._made.get(id(schema))
        if found is None:
            found = self._made[id(schema)] = (schema, self._make(schema))
        return found[1]
