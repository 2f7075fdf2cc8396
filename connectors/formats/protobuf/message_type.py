"""Message types: what a .proto file says, and the well-known types that Confluent's converter uses for Kafka Connect's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cdcworker.connectors.transforms.data import DATE, DECIMAL, TIME, TIMESTAMP

DECIMAL_TYPE: Final = "confluent.type.Decimal"
DATE_TYPE: Final = "google.type.Date"
TIME_TYPE: Final = "google.type.TimeOfDay"
TIMESTAMP_TYPE: Final = "google.protobuf.Timestamp"
LOGICAL_TYPES: Final[Mapping[str, str]] = {
    DECIMAL: DECIMAL_TYPE,
    DATE: DATE_TYPE,
    TIME: TIME_TYPE,
    TIMESTAMP: TIMESTAMP_TYPE,
}
META: Final = "confluent/meta.proto"
_WRAPPERS: Final = "google/protobuf/wrappers.proto"
WRAPPERS: Final[Mapping[str, str]] = {
    f"google.protobuf.{name}Value": kind
    for name, kind in (
        ("Double", "double"), ("Float", "float"), ("Int64", "int64"), ("UInt64", "uint64"), ("Int32", "int32"),
        ("UInt32", "uint32"), ("Bool", "bool"), ("String", "string"), ("Bytes", "bytes"),
    )
}  # fmt: skip
"""Messages with one field, 1, by the type of that."""
WRAPPER_OF: Final[Mapping[str, str]] = {kind: name for name, kind in WRAPPERS.items()}
IMPORTS: Final[Mapping[str, str]] = {
    DECIMAL_TYPE: "confluent/type/decimal.proto",
    DATE_TYPE: "google/type/date.proto",
    TIME_TYPE: "google/type/timeofday.proto",
    TIMESTAMP_TYPE: "google/protobuf/timestamp.proto",
    **dict.fromkeys(WRAPPERS, _WRAPPERS),
}
"""Where the well-known types are described."""
SCALARS: Final = frozenset(
    (
        "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32",
        "sfixed64", "bool", "string", "bytes",
    )
)  # fmt: skip
_NUMBERS: Final[Mapping[str, tuple[tuple[int, str, str], ...]]] = {
    DECIMAL_TYPE: ((1, "bytes", "value"), (2, "uint32", "precision"), (3, "int32", "scale")),
    DATE_TYPE: ((1, "int32", "year"), (2, "int32", "month"), (3, "int32", "day")),
    TIME_TYPE: ((1, "int32", "hours"), (2, "int32", "minutes"), (3, "int32", "seconds"), (4, "int32", "nanos")),
    TIMESTAMP_TYPE: ((1, "int64", "seconds"), (2, "int32", "nanos")),
    **{name: ((1, kind, "value"),) for name, kind in WRAPPERS.items()},
}


@dataclass(frozen=True, slots=True)
class FieldType:
    """A field. `type` is that of a scalar, or the name of a message or an enum as it is written."""

    name: str
    number: int
    type: str
    label: str = ""
    """`repeated`, `optional`, `required`, or none."""
    params: Mapping[str, str] = field(default_factory=dict)
    """Of the option `confluent.field_meta`."""
    oneof: str = ""
    map_types: tuple[str, str] | None = None
    """The types of key and value where the field is a map."""


@dataclass(frozen=True, slots=True)
class EnumType:
    """An enum: the names of its values by their numbers."""

    name: str
    values: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class MessageType:
    """A message with those that are described in it."""

    name: str
    fields: tuple[FieldType, ...] = ()
    messages: tuple[MessageType, ...] = ()
    enums: tuple[EnumType, ...] = ()


@dataclass(frozen=True, slots=True)
class ProtoFile:
    """A .proto file."""

    package: str
    messages: tuple[MessageType, ...]
    imports: tuple[str, ...] = ()
    enums: tuple[EnumType, ...] = ()
    syntax: str = "proto3"


WELL_KNOWN: Final[Mapping[str, MessageType]] = {
    name: MessageType(name, tuple(FieldType(of, number, kind) for number, kind, of in parts))
    for name, parts in _NUMBERS.items()
}
