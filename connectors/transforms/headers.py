"""Transforms of headers: DropHeaders, HeaderFrom, InsertHeader."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from cdcworker.connectors.transforms.data import (
    ConnectRecord,
    ConnectSchema,
    DataError,
    Header,
    require_map,
    require_struct,
)
from cdcworker.connectors.transforms.fields import copier
from cdcworker.connectors.transforms.transform import Convert, SideTransform
from cdcworker.connectors.transforms.values import parse_literal


class DropHeaders:
    """Headers of some names left out."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)

    def apply(self, record: ConnectRecord) -> ConnectRecord | None:
        return record.with_headers(tuple(each for each in record.headers if each.key not in self._names))


class InsertHeader:
    """A header with a fixed value, which has the type that its text means."""

    def __init__(self, name: str, literal: str) -> None:
        self._header = Header(name, *parse_literal(literal))

    def apply(self, record: ConnectRecord) -> ConnectRecord | None:
        return record.with_headers((*record.headers, self._header))


class HeaderFrom(SideTransform):
    """Fields copied into headers, or moved there. What is compiled makes the rest of the struct."""

    passes_null = False

    def __init__(
        self, fields: Sequence[str], headers: Sequence[str], *, moves: bool, replace_null: bool, is_key: bool
    ) -> None:
        super().__init__(is_key=is_key)
        self._pairs = tuple(zip(fields, headers, strict=True))
        self._moves = moves
        self._replace_null = replace_null
        self._purpose = f"header {'move' if moves else 'copy'}"

    def apply(self, record: ConnectRecord) -> ConnectRecord | None:
        schema, value = (record.key_schema, record.key) if self.is_key else (record.value_schema, record.value)
        updated = super().apply(record)
        assert updated is not None
        added = [self._header(schema, value, field, name) for field, name in self._pairs]
        return updated.with_headers((*record.headers, *added))

    def _header(self, schema: ConnectSchema | None, value: Any, field: str, name: str) -> Header:
        if schema is None:
            return Header(name, None, value.get(field))
        found = schema.of(value, field) if self._replace_null else value.get(field)
        return Header(name, schema.by_name[field], found)

    def compile(self, schema: ConnectSchema) -> tuple[ConnectSchema, Convert]:
        require_struct(schema, {}, self._purpose)
        moved = {field for field, _ in self._pairs}
        for field in moved:
            if field not in schema.by_name:
                raise DataError(f"Unknown field: {field}")
        if not self._moves:
            return schema, lambda value, _: require_struct(schema, value, self._purpose)
        kept = tuple(each for each in schema.fields if each.name not in moved)
        copy = copier(schema, [(name, name) for name, _ in kept], with_default=self._replace_null)

        def convert(value: Any, _: ConnectRecord) -> Any:
            return copy(require_struct(schema, value, self._purpose))

        return schema.basics(kept), convert

    def schemaless(self, value: Any, record: ConnectRecord) -> Any:
        fields = dict(require_map(value, self._purpose))
        if self._moves:
            for field, _ in self._pairs:
                fields.pop(field, None)
        return fields
