"""Schemas of Kafka Connect from Avro types, and Avro types from them, as Confluent's AvroConverter makes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from cdcworker.connectors.transforms.data import (
    DATE,
    DECIMAL,
    TIME,
    TIMESTAMP,
    ConnectSchema,
    DataError,
    Field,
    Type,
)
from cdcworker.schemas.avro import PRIMITIVES
from cdcworker.schemas.change import Avro, JsonObject
from cdcworker.schemas.envelope import json_default
from cdcworker.schemas.topics import avro_name

UNNAMED: Final = "io.confluent.connect.avro.ConnectDefault"
"""The name that the AvroConverter gives to a struct without one."""
PRECISION_DEFAULT: Final = 64
_TYPES: Final[Mapping[str, Type]] = {
    "boolean": "boolean",
    "int": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "bytes": "bytes",
    "string": "string",
    "fixed": "bytes",
    "enum": "string",
    "array": "array",
    "map": "map",
    "record": "struct",
}
_AVRO: Final[Mapping[str, Avro]] = {
    "int8": {"type": "int", "connect.type": "int8"},
    "int16": {"type": "int", "connect.type": "int16"},
    **{kind: name for name, kind in _TYPES.items() if name in PRIMITIVES},
}
_INTERNAL: Final = "connect.internal.type"
"""Says that a record stands for an entry of a map."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_LOGICAL: Final = {DECIMAL: "decimal", DATE: "date", TIME: "time-millis", TIMESTAMP: "timestamp-millis"}


# From Avro


def schema_of(kind: Avro) -> ConnectSchema:
    """Returns the schema of an Avro type."""
    return _Reader().schema(kind)


class _Reader:
    def __init__(self) -> None:
        self._named: dict[str, ConnectSchema] = {}

    def schema(self, kind: Avro) -> ConnectSchema:
        if isinstance(kind, list):
            branches = [branch for branch in kind if branch != "null"]
            if len(branches) != 1:
                raise DataError("A union of several types has no schema")
            return replace(self.schema(branches[0]), optional="null" in kind)
        if isinstance(kind, str):
            return ConnectSchema(_TYPES[kind], avro=kind) if kind in PRIMITIVES else self._named[kind]
        inner = kind["type"]
        if not isinstance(inner, str):
            return self.schema(inner)
        if inner not in _TYPES:
            return self._named[inner]
        made = self._made(kind, inner)
        if "name" in kind:
            space = kind.get("namespace")
            full = f"{space}.{kind['name']}" if space and "." not in kind["name"] else kind["name"]
            self._named[kind["name"]] = self._named[full] = made
        return made

    def _made(self, kind: JsonObject, inner: str) -> ConnectSchema:
        name = kind.get("connect.name")
        if name is None and inner == "record" and "name" in kind:
            name = f"{kind['namespace']}.{kind['name']}" if kind.get("namespace") else kind["name"]
        node = {key: value for key, value in kind.items() if key != "connect.default"}
        return ConnectSchema(
            kind.get("connect.type", _TYPES[inner]),
            name=name,
            version=kind.get("connect.version"),
            doc=kind.get("connect.doc"),
            parameters=kind.get("connect.parameters"),
            fields=tuple(map(self._field, kind["fields"])) if inner == "record" else (),
            key_schema=ConnectSchema("string", avro="string") if inner == "map" else None,
            value_schema=self.schema(kind["items" if inner == "array" else "values"])
            if inner in ("array", "map")
            else None,
            avro=node,
        )

    def _field(self, field: Mapping[str, Any]) -> Field:
        schema = self.schema(field["type"])
        attributes = {key: value for key, value in field.items() if key not in ("name", "type", "default")}
        default = _native(schema, field.get("default"))
        return Field(field["name"], replace(schema, default=default, attributes=attributes))


def _native(schema: ConnectSchema, default: Any) -> Any:
    """Returns a default in Avro's JSON form, where bytes are text with one character each, as a value."""
    if default is None:
        return None
    if schema.type == "bytes":
        return default.encode("latin-1")
    if schema.type in ("array", "map") and schema.value_schema is not None:
        if schema.type == "array":
            return [_native(schema.value_schema, item) for item in default]
        return {key: _native(schema.value_schema, item) for key, item in default.items()}
    if schema.type == "struct":
        return {name: _native(of, default.get(name)) for name, of in schema.fields}
    return default


# To Avro


class AvroStyle(NamedTuple):
    """How Avro types are written: with escaped names of fields, and with a type that was defined before by its name. Types
    that are only read by the writer of JSON have own names, and no name where the struct has none."""

    escaped: bool = True
    by_name: bool = True


REGISTERED: Final = AvroStyle()
WRITTEN: Final = AvroStyle(escaped=False)
JSON_WRITTEN: Final = AvroStyle(escaped=False, by_name=False)


def avro_of(schema: ConnectSchema, style: AvroStyle) -> Avro:
    """Returns the Avro type of a schema, a union with null if it is optional. Raises DataError where there is none."""
    return _Writer(style).union(schema)


class _Writer:
    def __init__(self, style: AvroStyle) -> None:
        self._style = style
        self._defined: dict[str, ConnectSchema] = {}
        self._unnamed = 0

    def union(self, schema: ConnectSchema) -> Avro:
        kind = self._type(schema)
        return ["null", kind] if schema.optional else kind

    def _type(self, schema: ConnectSchema) -> Avro:
        """Returns the type without null."""
        if schema.type == "struct":
            return self._record(schema)
        if schema.avro is not None and not _holds_struct(schema):
            known: Avro = schema.avro
            return known
        kind: JsonObject
        if schema.type == "array" and schema.value_schema is not None:
            kind = {"type": "array", "items": self.union(schema.value_schema)}
        elif schema.type == "map" and schema.value_schema is not None:
            if schema.key_schema is None or schema.key_schema.type != "string":
                raise DataError("A map whose keys are no text has no Avro type here")
            kind = {"type": "map", "values": self.union(schema.value_schema)}
        else:
            plain = _AVRO.get(schema.type)
            if plain is None:
                raise DataError(f"An {schema.type} without a schema of its items has no Avro type")
            kind = dict(plain) if isinstance(plain, dict) else {"type": plain}
            kind |= _logical(schema)
        kind |= _semantics(schema)
        return kind["type"] if len(kind) == 1 else kind

    def _record(self, schema: ConnectSchema) -> Avro:
        is_named = schema.name is not None or self._style.by_name
        full = ".".join(map(_legal, (schema.name or self._default_name()).split(".")))
        meaning = replace(schema, optional=False, default=None)
        if self._style.by_name:
            if full in self._defined:
                if self._defined[full] != meaning:
                    raise DataError(f"Two different schemas have the name {full}")
                return full
            self._defined[full] = meaning
        space, _, name = full.rpartition(".")
        kind: JsonObject = {"type": "record"}
        if is_named:
            kind |= {"name": name, "namespace": space} if space else {"name": name}
        kind["fields"] = [self._field(field) for field in schema.fields]
        kind |= _semantics(schema)
        if self._style.by_name and schema.avro is not None:
            if "connect.name" not in schema.avro:
                kind.pop("connect.name", None)
            if _INTERNAL in schema.avro:
                kind[_INTERNAL] = schema.avro[_INTERNAL]
        return kind

    def _default_name(self) -> str:
        self._unnamed += 1
        return UNNAMED if self._unnamed == 1 else f"{UNNAMED}{self._unnamed}"

    def _field(self, field: Field) -> JsonObject:
        name, schema = field
        kind = self._type(schema)
        out: JsonObject = {"name": _legal(name) if self._style.escaped else name, "type": kind}
        default = json_default(schema.default)
        if default is not None:
            if not (isinstance(kind, str) and kind not in PRIMITIVES):
                kind = {**(kind if isinstance(kind, dict) else {"type": kind}), "connect.default": default}
            out |= {"type": [kind, "null"] if schema.optional else kind, "default": default}
        elif schema.optional:
            out |= {"type": ["null", kind], "default": None}
        return {**out, **schema.attributes}


def _legal(name: str) -> str:
    """Returns a name that Avro allows. One that it allows stays: names inside of a column's type are escaped already."""
    return name if _NAME.fullmatch(name) else avro_name(name)


def _holds_struct(schema: ConnectSchema) -> bool:
    inner = schema.value_schema
    return inner is not None and (inner.type == "struct" or _holds_struct(inner))


def _logical(schema: ConnectSchema) -> JsonObject:
    logical = _LOGICAL.get(schema.name or "")
    if logical != "decimal":
        return {"logicalType": logical} if logical else {}
    parameters = schema.parameters or {}
    precision = int(parameters.get("connect.decimal.precision", PRECISION_DEFAULT))
    return {"scale": int(parameters.get("scale", "0")), "precision": precision, "logicalType": logical}


def _semantics(schema: ConnectSchema) -> JsonObject:
    semantics = {
        "connect.doc": schema.doc,
        "connect.version": schema.version,
        "connect.parameters": None if schema.parameters is None else dict(schema.parameters),
        "connect.name": schema.name,
    }
    return {key: value for key, value in semantics.items() if value is not None}
