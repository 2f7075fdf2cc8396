"""Kafka Connect's data model: schemas, records and headers, and the values that stand for them.

A struct is a mapping by the names of its fields, in which a field without a value may be left out. Logical types have their
physical values: `Decimal` bytes of its unscaled number, `Timestamp` and `Time` milliseconds, `Date` days. A value without a
schema is what JSON has: text, numbers, booleans, lists and mappings; a moment is then a `datetime`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

Type = Literal[
    "int8", "int16", "int32", "int64", "float32", "float64", "boolean", "string", "bytes", "array", "map", "struct"
]

DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
DATE: Final = "org.apache.kafka.connect.data.Date"
TIME: Final = "org.apache.kafka.connect.data.Time"
TIMESTAMP: Final = "org.apache.kafka.connect.data.Timestamp"
DAY_MS: Final = 86_400_000


class DataError(Exception):
    """A record that a transform cannot be applied to. The text is Kafka Connect's, without values of the record."""


class Field(NamedTuple):
    """A field of a struct."""

    name: str
    schema: ConnectSchema


@dataclass(frozen=True)
class ConnectSchema:
    """The schema of a value.

    `avro` is the Avro type that a primitive one was read from and is written as again, `attributes` are those of its field in
    Avro which belong to the product and not to Kafka Connect. Neither is part of what a schema means.
    """

    type: Type
    optional: bool = False
    default: Any = None
    name: str | None = None
    version: int | None = None
    doc: str | None = None
    parameters: Mapping[str, str] | None = field(default=None, hash=False)
    fields: tuple[Field, ...] = ()
    key_schema: ConnectSchema | None = None
    value_schema: ConnectSchema | None = None
    avro: Any = field(default=None, compare=False, repr=False)
    attributes: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def by_name(self) -> dict[str, ConnectSchema]:
        """The schemas of the fields."""
        return dict(self.fields)

    def of(self, value: Mapping[str, Any], name: str) -> Any:
        """Returns a field's value as Kafka Connect's `Struct.get` does: the default where it is null."""
        found = value.get(name)
        return self.by_name[name].default if found is None else found

    def basics(self, fields: tuple[Field, ...]) -> ConnectSchema:
        """Returns a struct's schema with other fields: its name, version, documentation and parameters are kept, and no more.
        It is neither optional nor has a default."""
        return replace(self, fields=fields, optional=False, default=None)


def struct(*fields: tuple[str, ConnectSchema], name: str | None = None, **more: Any) -> ConnectSchema:
    """Returns the schema of a struct."""
    return ConnectSchema("struct", name=name, fields=tuple(Field(*each) for each in fields), **more)


def timestamp(*, optional: bool = False) -> ConnectSchema:
    """Returns the schema of Kafka Connect's Timestamp."""
    return ConnectSchema("int64", optional, name=TIMESTAMP, version=1)


class Header(NamedTuple):
    """A header. Without a schema, bytes are written as they are."""

    key: str
    schema: ConnectSchema | None
    value: Any


@dataclass(slots=True)
class ConnectRecord:
    """A record on its way. `offset` is None for a record of a source, which has none yet."""

    topic: str
    key_schema: ConnectSchema | None = None
    key: Any = None
    value_schema: ConnectSchema | None = None
    value: Any = None
    headers: tuple[Header, ...] = ()
    timestamp: int | None = None
    partition: int | None = None
    offset: int | None = None

    def with_key(self, schema: ConnectSchema | None, key: Any) -> ConnectRecord:
        """Returns the record with another key."""
        return ConnectRecord(
            self.topic,
            schema,
            key,
            self.value_schema,
            self.value,
            self.headers,
            self.timestamp,
            self.partition,
            self.offset,
        )

    def with_value(self, schema: ConnectSchema | None, value: Any) -> ConnectRecord:
        """Returns the record with another value."""
        return ConnectRecord(
            self.topic,
            self.key_schema,
            self.key,
            schema,
            value,
            self.headers,
            self.timestamp,
            self.partition,
            self.offset,
        )

    def with_topic(self, topic: str) -> ConnectRecord:
        """Returns the record with another topic."""
        made = self.with_value(self.value_schema, self.value)
        made.topic = topic
        return made

    def with_headers(self, headers: tuple[Header, ...]) -> ConnectRecord:
        """Returns the record with other headers."""
        made = self.with_value(self.value_schema, self.value)
        made.headers = headers
        return made


_CLASSES: Final[tuple[tuple[type, str], ...]] = (
    (bool, "java.lang.Boolean"),
    (str, "java.lang.String"),
    (int, "java.lang.Long"),
    (float, "java.lang.Double"),
    (bytes, "[B"),
    (bytearray, "[B"),
    (datetime, "java.util.Date"),
    (Mapping, "java.util.HashMap"),
    (list, "java.util.ArrayList"),
    (tuple, "java.util.ArrayList"),
)
_BY_TYPE: Final[dict[str, str]] = {
    "int8": "java.lang.Byte",
    "int16": "java.lang.Short",
    "int32": "java.lang.Integer",
    "int64": "java.lang.Long",
    "float32": "java.lang.Float",
    "float64": "java.lang.Double",
    "boolean": "java.lang.Boolean",
    "string": "java.lang.String",
    "bytes": "[B",
    "array": "java.util.ArrayList",
    "map": "java.util.HashMap",
    "struct": "org.apache.kafka.connect.data.Struct",
}
LOGICAL_CLASSES: Final = {
    DECIMAL: "java.math.BigDecimal",
    DATE: "java.util.Date",
    TIME: "java.util.Date",
    TIMESTAMP: "java.util.Date",
}


def class_name(value: Any, schema: ConnectSchema | None = None) -> str:
    """Returns the name of the class that Kafka Connect's errors give for a value."""
    if value is None:
        return "null"
    if schema is not None:
        known = LOGICAL_CLASSES.get(schema.name or "") or _BY_TYPE.get(schema.type)
        if known is not None:
            return known
    return next((name for kind, name in _CLASSES if isinstance(value, kind)), type(value).__name__)


def require_map(value: Any, purpose: str) -> Mapping[str, Any]:
    """Returns a value without a schema that has fields."""
    if not isinstance(value, Mapping):
        raise DataError(f"Only Map objects supported in absence of schema for [{purpose}], found: {class_name(value)}")
    return value


def require_struct(schema: ConnectSchema, value: Any, purpose: str) -> Mapping[str, Any]:
    """Returns a value whose schema has fields."""
    if value is None or schema.type != "struct":
        raise DataError(f"Only Struct objects supported for [{purpose}], found: {class_name(value, schema)}")
    found: Mapping[str, Any] = value
    return found
