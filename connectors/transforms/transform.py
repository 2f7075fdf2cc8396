"""What a transform and a predicate are, and the transforms of a key or of a value, which are compiled once per schema."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Final, NamedTuple, Protocol, runtime_checkable

from cdcworker.connectors.transforms.bounded_cache import BoundedCache
from cdcworker.connectors.transforms.data import ConnectRecord, ConnectSchema

SCHEMAS_MAX: Final = 16_384
"""The most schemas for which a transform keeps what it has compiled (INV-10): as many as there are tables whose plans are kept.
What is compiled again makes a schema of its own, which has to be registered."""


@runtime_checkable
class Transform(Protocol):
    """A single message transform. It has no state but what it was configured with."""

    def apply(self, record: ConnectRecord) -> ConnectRecord | None:
        """Returns the record that takes the place of this one, which stays as it is; None: there is none. Raises DataError."""


@runtime_checkable
class Predicate(Protocol):
    """A condition under which a transform is applied."""

    def test(self, record: ConnectRecord) -> bool:
        """Returns whether the record meets the condition."""


Convert = Callable[[Any, ConnectRecord], Any]
"""Returns the new value for a value of a schema, which may be null, and the record that it is of."""


class Compiled(NamedTuple):
    """What a transform does with the values of one schema."""

    schema: ConnectSchema
    """The schema that it was compiled for, kept so that its identity is not that of another one."""
    updated: ConnectSchema
    convert: Convert


class SideTransform(ABC):
    """A transform of the key or of the value (`$Key`, `$Value`)."""

    passes_null: ClassVar[bool] = True
    """Whether a record without a key or without a value passes as it is."""

    def __init__(self, *, is_key: bool) -> None:
        self.is_key = is_key
        self._compiled: BoundedCache[int, Compiled] = BoundedCache(SCHEMAS_MAX)

    @abstractmethod
    def compile(self, schema: ConnectSchema) -> tuple[ConnectSchema, Convert]:
        """Returns the new schema of values of a schema, and what makes them. Called once per schema. Raises DataError."""

    @abstractmethod
    def schemaless(self, value: Any, record: ConnectRecord) -> Any:
        """Returns the new value for one without a schema, which may be null. Raises DataError."""

    def apply(self, record: ConnectRecord) -> ConnectRecord | None:
        schema, value = (record.key_schema, record.key) if self.is_key else (record.value_schema, record.value)
        if value is None and self.passes_null:
            return record
        if schema is None:
            return self.replaced(record, None, self.schemaless(value, record))
        compiled = self.compiled(schema)
        return self.replaced(record, compiled.updated, compiled.convert(value, record))

    def compiled(self, schema: ConnectSchema) -> Compiled:
        """Returns what was compiled for a schema, by its identity: to compare schemas costs more than most transforms do."""
        found = self._compiled.get(id(schema))
        if found is None:
            found = self._compiled[id(schema)] = Compiled(schema, *self.compile(schema))
        return found

    def replaced(self, record: ConnectRecord, schema: ConnectSchema | None, value: Any) -> ConnectRecord:
        """Returns the record with another key or value."""
        return record.with_key(schema, value) if self.is_key else record.with_value(schema, value)
