"""Kafka Connect's JSON, with or without schemas."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from cdcworker.connectors.config.definition import one_of
from cdcworker.connectors.formats.format import (
    NOTHING,
    SCHEMAS_MAX,
    Convert,
    Format,
    Headers,
    Typed,
    setting,
    unreadable,
)
from cdcworker.connectors.formats.json_payload import reading
from cdcworker.connectors.transforms.bounded_cache import BoundedCache
from cdcworker.connectors.transforms.data import ConnectSchema, Field
from cdcworker.schemas.record_format import ConnectJsonFormat
from cdcworker.schemas.untrusted.json_text import PROCESS, JsonRefused, parse_json

_TYPES: Final = {"float": "float32", "double": "float64"}
"""Types of Connect's JSON whose names are others in its data model."""
_PLAIN: Final = frozenset(
    ("int8", "int16", "int32", "int64", "float32", "float64", "boolean", "string", "bytes", "array", "map", "struct")
)
DECIMAL_FORMATS: Final = ("BASE64", "NUMERIC")


class JsonReader:
    """Reads Connect's JSON: with `schemas` an object of schema and payload, without them any value."""

    def __init__(self, *, schemas: bool) -> None:
        self._has_schemas = schemas
        self._known: BoundedCache[str, tuple[ConnectSchema, Convert]] = BoundedCache(SCHEMAS_MAX)

    def read(self, data: bytes | None, headers: Headers = ()) -> Typed:
        if data is None:
            return NOTHING
        try:
            parsed = parse_json(data, PROCESS, exact=self._has_schemas)
            if not self._has_schemas:
                return Typed(None, parsed)
            if not isinstance(parsed, dict) or parsed.keys() != {"schema", "payload"}:
                raise unreadable("the JSON is no object of schema and payload alone")
            if parsed["schema"] is None:
                return Typed(None, parse_json(data, PROCESS)["payload"])
            schema, convert = self._schema(parsed["schema"])
            return Typed(schema, convert(parsed["payload"]))
        except JsonRefused as error:
            raise unreadable(f"the JSON cannot be read: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise unreadable("the payload does not fit its schema", error) from None

    def _schema(self, given: Mapping[str, Any]) -> tuple[ConnectSchema, Convert]:
        text = repr(given)
        known = self._known.get(text)
        if known is None:
            schema = _connect_schema(given)
            known = self._known[text] = (schema, reading(schema))
        return known


def _connect_schema(given: Mapping[str, Any]) -> ConnectSchema:
    kind = _TYPES.get(given["type"], given["type"])
    if kind not in _PLAIN:
        raise ValueError("unknown type")
    default = given.get("default")
    inner = given.get("items") or given.get("values")
    return ConnectSchema(
        kind,
        bool(given.get("optional", False)),
        float(default) if isinstance(default, Decimal) else default,
        given.get("name"),
        given.get("version"),
        given.get("doc"),
        given.get("parameters"),
        tuple(Field(field["field"], _connect_schema(field)) for field in given.get("fields", ())),
        _connect_schema(given["keys"]) if kind == "map" else None,
        _connect_schema(inner) if inner is not None and kind in ("array", "map") else None,
    )


JSON: Final = "org.apache.kafka.connect.json.JsonConverter"
FORMATS: Final = (
    Format(
        (JSON, "JsonConverter", "json"),
        lambda settings: ConnectJsonFormat(
            schemas=settings["schemas.enable"], numeric=settings["decimal.format"] == "NUMERIC"
        ),
        lambda settings, _: JsonReader(schemas=settings["schemas.enable"]),
        "Kafka Connect's JSON.",
        keys=(
            setting("schemas.enable", True, "An object with schema and payload.", importance="MEDIUM"),
            setting(
                "decimal.format",
                "BASE64",
                "Decimals as base64 of their bytes, or as numbers.",
                validator=one_of(*DECIMAL_FORMATS),
                recommended=DECIMAL_FORMATS,
            ),
        ),
    ),
)
