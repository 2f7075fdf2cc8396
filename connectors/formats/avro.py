"""Avro in Confluent's framing, the default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from cdcworker.connectors.formats.format import (
    NOTHING,
    SCHEMAS_MAX,
    Convert,
    FindsSchemas,
    Format,
    Headers,
    Typed,
    unreadable,
)
from cdcworker.connectors.formats.json_payload import each, each_value
from cdcworker.connectors.transforms.avro_form import schema_of
from cdcworker.connectors.transforms.bounded_cache import BoundedCache
from cdcworker.connectors.transforms.data import ConnectSchema, DataError, Field
from cdcworker.schemas.avro import unframe
from cdcworker.schemas.decode import Prepared, decode_prepared, prepare
from cdcworker.schemas.record_format import AVRO as WIRE
from cdcworker.schemas.topics import unescape


class _Known(NamedTuple):
    prepared: Prepared
    schema: ConnectSchema
    renamed: Convert | None


class AvroReader:
    """Reads Confluent's frame with the schemas of the log. Names that Avro does not allow are as they were before."""

    def __init__(self, schemas: FindsSchemas) -> None:
        self._schemas = schemas
        self._known: BoundedCache[int, _Known] = BoundedCache(SCHEMAS_MAX)

    def read(self, data: bytes | None, headers: Headers = ()) -> Typed:
        if data is None:
            return NOTHING
        id, offset = unframe(data)
        known = self._known.get(id) or self._learned(id)
        value = decode_prepared(known.prepared, data[offset:])
        return Typed(known.schema, value if known.renamed is None else known.renamed(value))

    def _learned(self, id: int) -> _Known:
        avro = self._schemas.stored(id).schema
        try:
            schema, renamed = unescaped(schema_of(avro))
        except DataError as error:
            raise unreadable(str(error), id=id) from None
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            text = "the Avro schema has no form here: one that holds itself is not read"
            raise unreadable(text, error, id=id) from None
        known = self._known[id] = _Known(prepare(avro), schema, renamed)
        return known


def unescaped(schema: ConnectSchema) -> tuple[ConnectSchema, Convert | None]:
    """Returns the schema with the names of fields as they were before they were made names of Avro, and what does the same to
    its values; None where no name differs."""
    if schema.type in ("array", "map") and schema.value_schema is not None:
        inner, convert = unescaped(schema.value_schema)
        if convert is None:
            return schema, None
        of_items = each(convert) if schema.type == "array" else each_value(convert)
        return replace(schema, value_schema=inner), of_items
    if schema.type != "struct":
        return schema, None
    fields: list[Field] = []
    steps: list[tuple[str, str, Convert | None]] = []
    for name, of in schema.fields:
        inner, convert = unescaped(of)
        fields.append(Field(unescape(name), inner))
        steps.append((name, fields[-1].name, convert))
    if all(name == real and convert is None for name, real, convert in steps):
        return schema, None
    return replace(schema, fields=tuple(fields)), _renaming(steps)


def _renaming(steps: Sequence[tuple[str, str, Convert | None]]) -> Convert:
    def rename(value: Any) -> Any:
        if value is None:
            return None
        return {real: value.get(name) if convert is None else convert(value.get(name)) for name, real, convert in steps}

    return rename


AVRO: Final = "io.confluent.connect.avro.AvroConverter"
FORMATS: Final = (
    Format(
        (AVRO, "AvroConverter", "avro", "io.apicurio.registry.utils.converter.AvroConverter"),
        lambda _: WIRE,
        lambda _, schemas: AvroReader(schemas),
        "Avro in Confluent's framing, the default.",
        schema_type="AVRO",
        note="Avro is framed as Confluent's; its schema ids are those of the cluster's own registry, unless schema.registry.url names another.",
    ),
)
