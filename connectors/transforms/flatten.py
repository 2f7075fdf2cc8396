"""Flatten: the fields of structs inside of a struct as fields of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

from cdcworker.connectors.transforms.data import (
    ConnectRecord,
    ConnectSchema,
    DataError,
    Field,
    require_map,
    require_struct,
)
from cdcworker.connectors.transforms.transform import Convert, SideTransform


class _Leaf(NamedTuple):
    """A field of the flat struct: the way to it, and the default at each step of the way."""

    name: str
    steps: tuple[tuple[str, Any], ...]


class Flatten(SideTransform):
    PURPOSE: ClassVar[str] = "flattening"

    def __init__(self, delimiter: str, *, is_key: bool) -> None:
        super().__init__(is_key=is_key)
        self._delimiter = delimiter

    def compile(self, schema: ConnectSchema) -> tuple[ConnectSchema, Convert]:
        require_struct(schema, {}, self.PURPOSE)
        fields: dict[str, ConnectSchema] = {}
        leaves: list[_Leaf] = []
        self._collect(schema, _Way("", (), schema.optional, schema.default), fields, leaves)

        def convert(value: Any, _: ConnectRecord) -> Any:
            return {leaf.name: _found(value, leaf.steps) for leaf in leaves}

        return schema.basics(tuple(Field(*item) for item in fields.items())), convert

    def _collect(self, schema: ConnectSchema, way: _Way, fields: dict[str, ConnectSchema], leaves: list[_Leaf]) -> None:
        for name, of in schema.fields:
            flat = f"{way.name}{self._delimiter}{name}" if way.name else name
            default = of.default
            if default is None and way.default is not None:
                default = schema.of(way.default, name)
            steps = (*way.steps, (name, of.default))
            if of.type == "struct":
                self._collect(of, _Way(flat, steps, way.optional or of.optional, default), fields, leaves)
            elif of.type == "map":
                raise DataError(
                    f"Flatten transformation does not support MAP for record with schemas (for field {flat})."
                )
            elif flat in fields:
                raise DataError(f"Cannot create field because of field name duplication {flat}")
            else:
                fields[flat] = replace(of, optional=way.optional or of.optional, default=default)
                leaves.append(_Leaf(flat, steps))

    def schemaless(self, value: Any, record: ConnectRecord) -> Any:
        out: dict[str, Any] = {}
        self._flatten(require_map(value, self.PURPOSE), "", out)
        return out

    def _flatten(self, value: Mapping[str, Any], prefix: str, out: dict[str, Any]) -> None:
        for name, each in value.items():
            flat = f"{prefix}{self._delimiter}{name}" if prefix else name
            if isinstance(each, Mapping):
                self._flatten(each, flat, out)
            else:
                out[flat] = each


class _Way(NamedTuple):
    """The way to a struct inside of another one, and what it passes on to its fields."""

    name: str
    steps: tuple[tuple[str, Any], ...]
    optional: bool
    default: Any


def _found(value: Any, steps: tuple[tuple[str, Any], ...]) -> Any:
    for name, default in steps:
        value = value.get(name)
        if value is None:
            value = default
            if value is None:
                return None
    return value
