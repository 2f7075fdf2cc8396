"""Kafka Connect's JSON: Avro types and values as JsonConverter writes them."""

from __future__ import annotations

import binascii
import json
import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any, Final

from cdcworker.schemas.avro import PRIMITIVES
from cdcworker.schemas.change import Avro, JsonObject
from cdcworker.schemas.errors import CdcError, declare

NO_FORM = declare(
    "schema.no_json_form",
    "config",
    "A type has no form in Connect's JSON",
    "Give the connector the AvroConverter, or leave the column out with column.exclude.list.",
)

Text = Callable[[Any], str]
"""Returns the JSON text of a value."""
DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_TYPES: Final = {
    "boolean": "boolean",
    "int": "int32",
    "long": "int64",
    "float": "float",
    "double": "double",
    "bytes": "bytes",
    "string": "string",
    "fixed": "bytes",
    "enum": "string",
    "array": "array",
    "map": "map",
    "record": "struct",
}
_BOOLEANS: Final = {False: "false", True: "true"}


def _number(value: float) -> str:
    """Returns a number as Jackson writes it: NaN and infinities are strings."""
    number = float(value)
    if math.isfinite(number):
        return repr(number)
    return '"NaN"' if math.isnan(number) else '"Infinity"' if number > 0 else '"-Infinity"'


def _base64(value: bytes) -> str:
    return f'"{binascii.b2a_base64(value, newline=False).decode()}"'


_PRIMITIVES: Final[dict[str, Text]] = {
    "null": lambda _: "null",
    "boolean": _BOOLEANS.__getitem__,
    "int": int.__repr__,
    "long": int.__repr__,
    "float": _number,
    "double": _number,
    "bytes": _base64,
    "string": encode_basestring,
}


# Values


def compile_json(kind: Avro, *, numeric: bool = False) -> Text:
    """Returns the writer of an Avro type; it takes a record as a mapping, or as a tuple in the order of its fields.

    `numeric` writes decimals as numbers (`decimal.format`); Connect's default is the base64 of their bytes.
    Raises CdcError `schema.no_json_form` for a union of several types.
    """
    if isinstance(kind, str):
        return _PRIMITIVES[kind]
    if isinstance(kind, list):
        return _optional(compile_json(_branch(kind), numeric=numeric))
    inner = kind["type"]
    if not isinstance(inner, str):
        return compile_json(inner, numeric=numeric)
    if inner == "record":
        return compile_fields([(field["name"], field["type"]) for field in kind["fields"]], numeric=numeric)
    if inner == "array":
        return _array(compile_json(kind["items"], numeric=numeric))
    if inner == "map":
        return _map(compile_json(kind["values"], numeric=numeric))
    if inner in ("fixed", "enum"):
        return _base64 if inner == "fixed" else encode_basestring
    if numeric and kind.get("connect.name") == DECIMAL:
        return _decimal(int(kind["connect.parameters"]["scale"]))
    return _PRIMITIVES[inner]


def compile_fields(fields: Sequence[tuple[str, Avro]], *, numeric: bool = False) -> Text:
    """Returns the writer of a record with these fields."""
    names = tuple(name for name, _ in fields)
    writes = tuple(_member(name, compile_json(kind, numeric=numeric)) for name, kind in fields)

    def write_record(value: Any) -> str:
        row = value if isinstance(value, tuple) else [value.get(name) for name in names]
        return "{" + ",".join([write(item) for write, item in zip(writes, row, strict=True)]) + "}"

    return write_record


def _member(name: str, write: Text) -> Text:
    head = encode_basestring(name) + ":"
    return lambda value: head + write(value)


def _optional(write: Text) -> Text:
    return lambda value: "null" if value is None else write(value)


def _array(write: Text) -> Text:
    return lambda values: "[" + ",".join(map(write, values)) + "]"


def _map(write: Text) -> Text:
    def write_map(values: Mapping[str, Any]) -> str:
        return "{" + ",".join([f"{encode_basestring(name)}:{write(value)}" for name, value in values.items()]) + "}"

    return write_map


def _decimal(scale: int) -> Text:
    def write_decimal(value: bytes) -> str:
        unscaled = int.from_bytes(value, "big", signed=True)
        digits = tuple(map(int, str(abs(unscaled))))
        return format(Decimal((unscaled < 0, digits, -scale)), "f")

    return write_decimal


def _branch(union: list[Any]) -> Any:
    others = [branch for branch in union if branch != "null"]
    if len(others) != 1 or len(union) > 2:
        raise CdcError(NO_FORM, "a union of several types has no form in JSON")
    return others[0]


# Schemas


def connect_schema(kind: Avro, *, optional: bool = False, default: Any = None) -> JsonObject:
    """Returns the `schema` block of a type. `default` is in Avro's JSON form; None stands for no default. One that holds a
    struct is left out: while Connect builds a schema, no struct is of that schema, and it would refuse the record."""
    if isinstance(kind, list):
        return connect_schema(_branch(kind), optional="null" in kind, default=default)
    if isinstance(kind, dict) and not isinstance(kind["type"], str):
        return connect_schema(kind["type"], optional=optional, default=default)
    node: JsonObject = {"type": kind} if isinstance(kind, str) else kind
    inner = node["type"]
    out: JsonObject = {"type": node.get("connect.type", _TYPES[inner])}
    if inner == "array":
        out["items"] = connect_schema(node["items"])
    elif inner == "map":
        out["keys"], out["values"] = connect_schema("string"), connect_schema(node["values"])
    elif inner == "record":
        out["fields"] = [field_schema(field) for field in node["fields"]]
    out["optional"] = optional
    out |= _semantics(node)
    if default is not None and not _holds_struct(out):
        out["default"] = json.loads(compile_json(kind)(_native(node, default)))
    return out


def _holds_struct(schema: JsonObject) -> bool:
    return schema["type"] == "struct" or any(
        _holds_struct(schema[part]) for part in ("items", "values") if part in schema
    )


def field_schema(field: Mapping[str, Any]) -> JsonObject:
    """Returns the schema block of a record's field."""
    return {**connect_schema(field["type"], default=field.get("default")), "field": field["name"]}


def _semantics(node: JsonObject) -> JsonObject:
    """Returns Connect's name, version, documentation and parameters, in the order of JsonConverter."""
    name = node.get("connect.name")
    if name is None and "name" in node:
        name = f"{node['namespace']}.{node['name']}" if node.get("namespace") else node["name"]
    semantics = {
        "name": name,
        "version": node.get("connect.version"),
        "doc": node.get("connect.doc"),
        "parameters": node.get("connect.parameters"),
    }
    return {key: value for key, value in semantics.items() if value is not None}


def _native(kind: Avro, default: Any) -> Any:
    """Converts a default in Avro's JSON form, where bytes are text with one character each, to a value."""
    if default is None:
        return None
    if isinstance(kind, list):
        return _native(_branch(kind), default)
    inner: Any = kind if isinstance(kind, str) else kind["type"]
    if not isinstance(inner, str):
        return _native(inner, default)
    if inner in ("bytes", "fixed"):
        return default.encode("latin-1")
    if isinstance(kind, str) or inner in PRIMITIVES:
        return default
    if inner == "array":
        return [_native(kind["items"], item) for item in default]
    if inner == "map":
        return {name: _native(kind["values"], item) for name, item in default.items()}
    if inner == "record":
        return {field["name"]: _native(field["type"], default.get(field["name"])) for field in kind["fields"]}
    return default
