"""SetSchemaMetadata: another name, another version of a schema."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cdcworker.connectors.transforms.data import ConnectRecord, ConnectSchema, DataError
from cdcworker.connectors.transforms.fields import copier
from cdcworker.connectors.transforms.transform import Convert, SideTransform


class SetSchemaMetadata(SideTransform):
    passes_null = False

    def __init__(self, name: str | None, version: int | None, *, replace_null: bool, is_key: bool) -> None:
        super().__init__(is_key=is_key)
        self._name = name
        self._version = version
        self._replace_null = replace_null

    def compile(self, schema: ConnectSchema) -> tuple[ConnectSchema, Convert]:
        name = schema.name if self._name is None else self._name
        version = schema.version if self._version is None else self._version
        is_same = (name, version) == (schema.name, schema.version)
        updated = replace(schema, name=name, version=version, avro=schema.avro if is_same else None)
        if schema.type != "struct" or not self._replace_null:
            return updated, lambda value, _: value
        copy = copier(schema, [(each.name, each.name) for each in schema.fields], with_default=True)
        return updated, lambda value, _: None if value is None else copy(value)

    def schemaless(self, value: Any, record: ConnectRecord) -> Any:
        if value is None:
            return None
        raise DataError("Schema required for [updating schema metadata]")
