"""Readers that know nothing of this product: fastavro, Confluent's deserializer, and Kafka Connect's rules for its JSON."""

from __future__ import annotations

import base64
import io
import json
import re
import uuid
from collections.abc import Mapping
from typing import Any

import fastavro
from confluent_kafka.schema_registry import Schema
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
DAY_MS = 86_400_000
MOMENT = r"[+-]?\d{4,}-\d\d-\d\d"
CLOCK = r"([01]\d|2[0-4]):\d\d:\d\d(\.\d{1,9})?"


class _Registry:
    """As much of a registry's client as the deserializer asks."""

    def __init__(self, schemas: Mapping[int, Any]) -> None:
        self.schemas = schemas

    def config(self) -> dict[str, Any]:
        return {}

    def get_schema(self, number: int, *_: Any, **__: Any) -> Schema:
        return Schema(json.dumps(self.schemas[number]), "AVRO")


def read_avro(schemas: Mapping[int, Any], framed: bytes, field: str = MessageField.VALUE) -> Any:
    """Reads a record as both readers do, which have to agree."""
    number = int.from_bytes(framed[1:5], "big")
    context = SerializationContext("shop.public.t", field)
    deserializer = AvroDeserializer(_Registry(schemas), conf={"subject.name.strategy.type": "TOPIC"})  # type: ignore[arg-type]
    found = deserializer(framed, context)
    buffer = io.BytesIO(framed[5:])
    parsed = fastavro.parse_schema(schemas[number])
    assert repr(fastavro.schemaless_reader(buffer, parsed)) == repr(found)
    assert not buffer.read()
    return found


# -- Kafka Connect's JSON -----------------------------------------------------------------------------------------------


def read_connect(record: bytes) -> Any:
    """Reads a record with its schema as JsonConverter does. Raises ValueError where it throws."""
    whole = json.loads(record)
    return connect_value(whole["schema"], whole["payload"])


def connect_value(schema: Mapping[str, Any], value: Any) -> Any:
    if "default" in schema:
        _check_default(schema)
    for inner in (*schema.get("fields", ()), *(schema[part] for part in ("items", "values") if part in schema)):
        if "default" in inner:
            _check_default(inner)
    if value is None:
        if schema.get("optional"):
            return schema.get("default")
        raise ValueError(f"null for {schema.get('field')}")
    kind = schema["type"]
    if kind == "struct":
        names = {field["field"] for field in schema["fields"]}
        if not isinstance(value, dict) or not names.issuperset(value):
            raise ValueError("not the struct")
        return {field["field"]: connect_value(field, value.get(field["field"])) for field in schema["fields"]}
    if kind == "array":
        return [connect_value(schema["items"], item) for item in value]
    if kind == "map":
        return {name: connect_value(schema["values"], item) for name, item in value.items()}
    return _connect_logical(schema.get("name"), _connect_plain(kind, value))


def _check_default(schema: Mapping[str, Any]) -> None:
    """A struct's default is of another schema object than the one that is being built: Connect refuses it."""
    if schema["type"] == "struct":
        raise ValueError("Struct schemas do not match.")
    connect_value({name: item for name, item in schema.items() if name != "default"}, schema["default"])


def _connect_plain(kind: str, value: Any) -> Any:
    if kind in INTEGERS:
        if type(value) is not int or not -(1 << INTEGERS[kind] - 1) <= value < 1 << INTEGERS[kind] - 1:
            raise ValueError(f"not an {kind}")
    elif kind in ("float", "double"):
        if value not in ("NaN", "Infinity", "-Infinity"):
            float(value)
    elif kind == "bytes":
        return base64.b64decode(value, validate=True)
    elif type(value) is not {"boolean": bool, "string": str}[kind]:
        raise ValueError(f"not a {kind}")
    return value


def _connect_logical(name: str | None, value: Any) -> Any:
    """What the classes of Connect's own logical types refuse."""
    if name == "org.apache.kafka.connect.data.Decimal" and not value:
        raise ValueError("Zero length BigInteger")
    if name == "org.apache.kafka.connect.data.Time" and not 0 <= value < DAY_MS:
        raise ValueError("not a time of a day")
    return value


# -- what a type means --------------------------------------------------------------------------------------------------

_MEANINGS = {
    "io.debezium.data.Uuid": lambda value: str(uuid.UUID(value)) == value,
    "io.debezium.data.Json": lambda value: json.loads(value) is not Ellipsis,
    "io.debezium.time.ZonedTimestamp": lambda value: re.fullmatch(f"-?infinity|{MOMENT}T{CLOCK}Z", value),
    "io.debezium.time.ZonedTime": lambda value: re.fullmatch(rf"{CLOCK}(Z|[+-]\d\d:\d\d(:\d\d)?)", value),
    "io.debezium.time.IsoDate": lambda value: re.fullmatch(f"-?infinity|{MOMENT}Z", value),
    "io.debezium.time.IsoTime": lambda value: re.fullmatch(f"{CLOCK}Z", value),
    "io.debezium.time.IsoTimestamp": lambda value: re.fullmatch(f"-?infinity|{MOMENT}T{CLOCK}Z", value),
    "io.debezium.time.Interval": lambda value: re.fullmatch(r"-?infinity|P(-?\d+[YMD])+T(-?[\d.]+[HMS])+", value),
    "io.debezium.time.MicroTime": lambda value: 0 <= value < DAY_MS * 1000,
    "org.apache.kafka.connect.data.Time": lambda value: 0 <= value < DAY_MS,
    "org.apache.kafka.connect.data.Decimal": bool,
    "io.debezium.data.VariableScaleDecimal": lambda value: bool(value["value"]),
    "io.debezium.data.geometry.Point": lambda value: len(value["wkb"]) == 21,
    "io.debezium.data.geometry.Geometry": lambda value: len(value["wkb"]) >= 9,
    "io.debezium.data.geometry.Geography": lambda value: len(value["wkb"]) >= 9,
}


def means(kind: Any, value: Any) -> bool:
    """Tells whether a raw value is one of its type, as the names of Debezium and Connect define it."""
    if isinstance(kind, list):
        return value is None or means(next(branch for branch in kind if branch != "null"), value)
    if not isinstance(kind, dict):
        return value is not None
    if kind["type"] == "array":
        return all(means(kind["items"], item) for item in value)
    if kind["type"] == "record" and "connect.name" not in kind:
        return all(means(field["type"], value[field["name"]]) for field in kind["fields"])
    name = kind.get("connect.name")
    if name == "io.debezium.data.Enum":
        # A label may hold commas.
        return f",{value}," in f",{kind['connect.parameters']['allowed']},"
    if name == "io.debezium.data.Bits":
        return len(value) <= (int(kind["connect.parameters"]["length"]) + 7) // 8
    return bool(_MEANINGS.get(str(name), lambda value: value is not None)(value))
