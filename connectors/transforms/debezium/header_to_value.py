"""HeaderToValue: headers as fields of the value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cdcworker.connectors.transforms.bounded_cache import BoundedCache
from cdcworker.connectors.transforms.data import ConnectRecord, ConnectSchema, DataError, Field, Header
from cdcworker.connectors.transforms.transform import SCHEMAS_MAX

_TEXT: Final = ConnectSchema("string", optional=True)
"""The schema of a header that has none: its bytes are text."""
_Added = tuple[tuple[str, ...], ConnectSchema, Any]
"""The way to a new field, its schema and its value."""


class HeaderToValue:
    """Fields with the values of headers, behind those that are there. A name with dots is one of a struct inside of the value."""

    def __init__(self, headers: Sequence[str], fields: Sequence[str], *, moves: bool) -> None:
        self._fields = {header: tuple(name.split(".")) for header, name in zip(headers, fields, strict=True)}
        self._moves = moves
        self._made: BoundedCache[tuple[Any, ...], tuple[tuple[ConnectSchema, ...], ConnectSchema]] = BoundedCache(
            SCHEMAS_MAX
        )

    def apply(self, record: ConnectRecord) -> ConnectRecord | None:
        if record.value is None:
            return record
        schema = record.value_schema
        if schema is None or schema.type != "struct":
            raise DataError("Only Struct objects supported for [Header field insertion]")
        added = [self._added(header) for header in record.headers if header.key in self._fields]
        if not added:
            return record
        widened, value = self._schema(schema, added), record.value
        for path, _, found in added:
            value = _put(value, path, found)
        made = record.with_value(widened, value)
        if self._moves:
            made.headers = tuple(header for header in record.headers if header.key not in self._fields)
        return made

    def _added(self, header: Header) -> _Added:
        path, value = self._fields[header.key], header.value
        if header.schema is None:
            return path, _TEXT, value.decode(errors="replace") if isinstance(value, bytes) else value
        return path, header.schema, value

    def _schema(self, schema: ConnectSchema, added: Sequence[_Added]) -> ConnectSchema:
        place = (id(schema), *((path, id(of)) for path, of, _ in added))
        found = self._made.get(place)
        if found is None:
            made = schema
            for path, of, _ in added:
                made = _with_field(made, path, of)
            found = self._made[place] = ((schema, *(of for _, of, _ in added)), made)
        return found[1]


def _with_field(schema: ConnectSchema, path: Sequence[str], of: ConnectSchema) -> ConnectSchema:
    name, rest = path[0], path[1:]
    inner = schema.by_name.get(name)
    if rest:
        if inner is None or inner.type != "struct":
            raise DataError(f"Cannot create field because there is no struct {name}")
        fields = tuple(Field(*((n, _with_field(o, rest, of)) if n == name else (n, o))) for n, o in schema.fields)
    elif inner is not None:
        raise DataError(f"Cannot create field because of field name duplication {name}")
    else:
        fields = (*schema.fields, Field(name, of))
    return ConnectSchema(
        "struct", schema.optional, schema.default, schema.name, schema.version, schema.doc, schema.parameters, fields
    )


def _put(value: Mapping[str, Any] | None, path: Sequence[str], found: Any) -> Mapping[str, Any] | None:
    if value is None:
        return None
    name, rest = path[0], path[1:]
    return {**value, name: _put(value.get(name), rest, found) if rest else found}
