"""Confluent's JsonSchemaConverter: framed JSON whose schema is registered as JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from cdcworker.connectors.config.definition import one_of
from cdcworker.connectors.formats.connect_json import DECIMAL_FORMATS
from cdcworker.connectors.formats.format import (
    NOTHING,
    SCHEMAS_MAX,
    Convert,
    FindsSchemas,
    Format,
    Headers,
    Typed,
    setting,
    unreadable,
)
from cdcworker.connectors.formats.framed import DEPTH_MAX, NODES_MAX, FramedWriter, framed_schema
from cdcworker.connectors.formats.json_payload import ONE_OF, UNFIT, reading
from cdcworker.connectors.formats.single_values import connect_schema_of
from cdcworker.connectors.transforms.bounded_cache import BoundedCache
from cdcworker.connectors.transforms.data import DECIMAL, ConnectSchema, Field, Type
from cdcworker.schemas.avro import TypedSchema
from cdcworker.schemas.change import Avro, JsonObject
from cdcworker.schemas.connect_json import compile_json
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.record_format import NO_FORM, RecordWriter
from cdcworker.schemas.untrusted.json_text import PROCESS, JsonRefused, parse_json

JSON_SCHEMA: Final = "io.confluent.connect.json.JsonSchemaConverter"
_PLAIN: Final[Mapping[str, JsonObject]] = {
    **{kind: {"type": "integer", "connect.type": kind} for kind in ("int8", "int16", "int32", "int64")},
    **{kind: {"type": "number", "connect.type": kind} for kind in ("float32", "float64")},
    "boolean": {"type": "boolean"},
    "string": {"type": "string"},
    "bytes": {"type": "string", "connect.type": "bytes"},
}
_NUMBERS: Final = frozenset(("int8", "int16", "int32", "int64", "float32", "float64", "bytes"))


# Writing


@dataclass(frozen=True, slots=True)
class JsonSchemaFormat:
    """Framed JSON. With `numeric` decimals are numbers instead of base64."""

    numeric: bool = False

    def writer(self, kind: Avro | None, *, optional: bool = False) -> RecordWriter:
        if kind is None:
            raise CdcError(NO_FORM, "a value without a schema has no JSON Schema; the JsonConverter can write it")
        schema = replace(connect_schema_of(kind), optional=optional)
        text = json.dumps(described(schema), separators=(",", ":"), ensure_ascii=False)
        write = compile_json(kind, numeric=self.numeric)
        return FramedWriter(
            kind, TypedSchema("JSON", text, schema.name or ""), lambda value: write(value).encode(), null=b"null"
        )


def described(schema: ConnectSchema, index: int | None = None) -> JsonObject:
    """Returns the JSON Schema of a schema; `index` is its place among the fields of a struct."""
    place = {} if index is None else {"connect.index": index}
    plain = {**_without_null(schema), **({} if schema.optional else place)}
    return {**place, "oneOf": [{"type": "null"}, plain]} if schema.optional else plain


def _without_null(schema: ConnectSchema) -> JsonObject:
    out: JsonObject
    if schema.type == "struct":
        fields = enumerate(schema.fields)
        out = {"type": "object", "properties": {field.name: described(field.schema, n) for n, field in fields}}
    elif schema.type == "array" and schema.value_schema is not None:
        out = {"type": "array", "items": described(schema.value_schema)}
    elif schema.type == "map" and schema.value_schema is not None:
        out = {"type": "object", "connect.type": "map", "additionalProperties": described(schema.value_schema)}
    else:
        out = dict(_PLAIN[schema.type])
        if schema.name == DECIMAL:
            out["type"] = "number"
    meaning = {
        "title": schema.name,
        "connect.version": schema.version,
        "description": schema.doc,
        "connect.parameters": dict(schema.parameters) if schema.parameters else None,
        "default": schema.default if isinstance(schema.default, str | bool | int | float) else None,
    }
    return {**out, **{key: value for key, value in meaning.items() if value is not None}}


# Reading


def schema_of_text(text: str) -> ConnectSchema:
    """Returns the schema of a JSON Schema. Raises one of `UNFIT` for one that has none."""
    parsed = parse_json(text, PROCESS)
    return _Described(parsed).schema(parsed)


class _Described:
    """Reads one JSON Schema; `root` is where references begin."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._nodes = 0

    def schema(self, node: Any, depth: int = 0) -> ConnectSchema:
        self._nodes += 1
        if depth > DEPTH_MAX or self._nodes > NODES_MAX:
            raise ValueError("the schema is nested too deeply, or has too many parts")
        if "$ref" in node:
            return self.schema(self._referred(node["$ref"]), depth + 1)
        for key in ("oneOf", "anyOf"):
            if key in node:
                return self._union(node[key], depth)
        if "allOf" in node and len(node["allOf"]) == 1:
            return self.schema(node["allOf"][0], depth + 1)
        made = self._plain(node, depth)
        default = node.get("default")
        return replace(
            made,
            name=node.get("title"),
            version=node.get("connect.version"),
            doc=node.get("description"),
            parameters=node.get("connect.parameters"),
            default=default if isinstance(default, str | bool | int | float) else None,
        )

    def _referred(self, reference: str) -> Any:
        if not reference.startswith("#"):
            raise ValueError("a reference to another schema")
        found = self._root
        for part in reference[1:].split("/")[1:]:
            found = found[part]
        return found

    def _union(self, branches: Any, depth: int) -> ConnectSchema:
        others = [branch for branch in branches if branch.get("type") != "null"]
        has_null = len(others) < len(branches)
        if len(others) == 1:
            return replace(self.schema(others[0], depth + 1), optional=has_null)
        fields = tuple(
            Field(f"{ONE_OF}.field.{n}", replace(self.schema(branch, depth + 1), optional=True))
            for n, branch in enumerate(others)
        )
        return ConnectSchema("struct", has_null, name=ONE_OF, fields=fields)

    def _plain(self, node: Mapping[str, Any], depth: int) -> ConnectSchema:
        kind, given = node.get("type"), node.get("connect.type")
        if isinstance(kind, list):
            others = [one for one in kind if one != "null"]
            [kind] = others
            return replace(self._plain({**node, "type": kind}, depth + 1), optional=len(node["type"]) > 1)
        if kind == "object" or (kind is None and "properties" in node):
            return self._object(node, depth)
        if kind == "array":
            return ConnectSchema("array", value_schema=self.schema(node["items"], depth + 1))
        if kind in ("integer", "number"):
            plain: Type = "int64" if kind == "integer" else "float64"
            return ConnectSchema(given if given in _NUMBERS else plain)
        if kind == "boolean":
            return ConnectSchema("boolean")
        if kind == "string" or "enum" in node:
            return ConnectSchema("bytes" if given == "bytes" else "string")
        raise ValueError("a type that has no schema")

    def _object(self, node: Mapping[str, Any], depth: int) -> ConnectSchema:
        if node.get("connect.type") == "map":
            values = self.schema(node["additionalProperties"], depth + 1)
            return ConnectSchema("map", key_schema=ConnectSchema("string"), value_schema=values)
        places = sorted(
            (one.get("connect.index", number), name, one)
            for number, (name, one) in enumerate(node.get("properties", {}).items())
        )
        required = frozenset(node.get("required", ()))
        fields = []
        for _, name, one in places:
            schema = self.schema(one, depth + 1)
            # A property that may be left out may be null, unless Kafka Connect has said what it is.
            is_own = "connect.index" in one or name in required
            fields.append(Field(name, schema if is_own else replace(schema, optional=True)))
        return ConnectSchema("struct", fields=tuple(fields))


class JsonSchemaReader:
    """Reads framed JSON by the JSON Schema of its id."""

    def __init__(self, schemas: FindsSchemas) -> None:
        self._schemas = schemas
        self._known: BoundedCache[str, tuple[ConnectSchema, Convert]] = BoundedCache(SCHEMAS_MAX)

    def read(self, data: bytes | None, headers: Headers = ()) -> Typed:
        if data is None:
            return NOTHING
        stored, offset = framed_schema(data, self._schemas, "JSON")
        known = self._known.get(stored.fingerprint)
        if known is None:
            try:
                schema = schema_of_text(stored.text)
            except (*UNFIT, JsonRefused) as error:
                raise unreadable("the JSON Schema cannot be read", error, id=stored.id) from None
            known = self._known[stored.fingerprint] = (schema, reading(schema))
        try:
            return Typed(known[0], known[1](parse_json(data[offset:], PROCESS, exact=True)))
        except JsonRefused as error:
            raise unreadable(f"the JSON cannot be read: {error}") from None
        except UNFIT as error:
            raise unreadable("the JSON does not fit its schema", error) from None


FORMATS: Final = (
    Format(
        (JSON_SCHEMA, "JsonSchemaConverter", "json_schema"),
        lambda settings: JsonSchemaFormat(numeric=settings["decimal.format"] == "NUMERIC"),
        lambda _, schemas: JsonSchemaReader(schemas),
        "JSON in Confluent's framing; the schema is registered as JSON Schema.",
        keys=(
            setting(
                "decimal.format", "BASE64", "Decimals as base64 of their bytes, or as numbers.",
                validator=one_of(*DECIMAL_FORMATS), recommended=DECIMAL_FORMATS,
            ),
        ),
        schema_type="JSON",
    ),
)  # fmt: skip
