"""MaskField: fields with an empty value, or another one, in place of theirs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar, Final

from cdcworker.connectors.transforms import numbers
from cdcworker.connectors.transforms.data import (
    DATE,
    DECIMAL,
    LOGICAL_CLASSES,
    TIME,
    TIMESTAMP,
    ConnectRecord,
    ConnectSchema,
    DataError,
    Field,
    class_name,
    require_map,
    require_struct,
)
from cdcworker.connectors.transforms.dates import to_moment
from cdcworker.connectors.transforms.transform import Convert, SideTransform

_EMPTY: Final[Mapping[str, Any]] = {
    **dict.fromkeys(numbers.BITS, 0),
    "float32": 0.0,
    "float64": 0.0,
    "boolean": False,
    "string": "",
    "array": [],
    "map": {},
}
"""The values of masked fields, by type."""


class MaskField(SideTransform):
    PURPOSE: ClassVar[str] = "mask fields"
    passes_null = False

    def __init__(self, fields: Collection[str], replacement: str | None, *, replace_null: bool, is_key: bool) -> None:
        super().__init__(is_key=is_key)
        self._fields = frozenset(fields)
        self._replacement = replacement
        self._replace_null = replace_null

    def compile(self, schema: ConnectSchema) -> tuple[ConnectSchema, Convert]:
        require_struct(schema, {}, self.PURPOSE)
        steps = tuple(
            (name, of.default if self._replace_null else None, self._mask(of) if name in self._fields else None)
            for name, of in schema.fields
        )

        def convert(value: Any, _: ConnectRecord) -> Any:
            fields = require_struct(schema, value, self.PURPOSE)
            out = {}
            for name, default, mask in steps:
                found = fields.get(name)
                if found is None:
                    found = default
                out[name] = found if found is None or mask is None else mask()
            return out

        return self._schema(schema), convert

    def _schema(self, schema: ConnectSchema) -> ConnectSchema:
        """Returns the same schema, in which a masked field has no logical type of Avro's that its new text is no value of."""
        fields = tuple(
            Field(name, replace(of, avro=None) if name in self._fields and _is_uuid(of) else of)
            for name, of in schema.fields
        )
        is_same = all(new is old for (_, new), (_, old) in zip(fields, schema.fields, strict=True))
        return schema if is_same else replace(schema, fields=fields)

    def schemaless(self, value: Any, record: ConnectRecord) -> Any:
        fields = require_map(value, self.PURPOSE)
        return {**fields, **{name: self._masked(fields.get(name)) for name in self._fields}}

    def _mask(self, schema: ConnectSchema) -> Callable[[], Any]:
        """Returns what gives the value of a masked field. It raises DataError where there is none: only a value that is not null
        has to be masked."""
        try:
            masked = empty(schema) if self._replacement is None else replaced(schema, self._replacement)
        except DataError as error:
            text = str(error)

            def refuse() -> Any:
                raise DataError(text)

            return refuse
        return lambda: masked

    def _masked(self, value: Any) -> Any:
        """Masks a value without a schema."""
        if value is None:
            return None
        if self._replacement is not None:
            return replaced(_schema_of(value), self._replacement)
        if isinstance(value, datetime):
            return to_moment(0)
        if isinstance(value, Decimal):
            return Decimal(0)
        return empty(_schema_of(value))


def _is_uuid(schema: ConnectSchema) -> bool:
    """Returns whether readers of Avro take the field's texts for UUIDs, which other texts are not. Debezium's name alone promises
    readers nothing."""
    return isinstance(schema.avro, Mapping) and schema.avro.get("logicalType") == "uuid"


def empty(schema: ConnectSchema) -> Any:
    """Returns the empty value of a type. Raises DataError for bytes and structs, which have none."""
    if schema.name == DECIMAL:
        return b"\0"
    if schema.type not in _EMPTY:
        raise DataError(f"Cannot mask value of type: class {class_name(b'', schema)}")
    return _EMPTY[schema.type]


def replaced(schema: ConnectSchema, replacement: str) -> Any:
    """Returns the replacement as a value of a type. Raises DataError where it is none, or the type has none."""
    if schema.name in (DATE, TIME, TIMESTAMP) or (
        schema.name not in LOGICAL_CLASSES and schema.type in _NO_REPLACEMENT
    ):
        raise DataError(f"Cannot mask value of type class {class_name('', schema)} with custom replacement.")
    if schema.type == "string":
        return replacement
    try:
        number = numbers.parsed_decimal(replacement)
        if schema.name == DECIMAL:
            return numbers.decimal_bytes(number, int((schema.parameters or {}).get("scale", "0")))
        if schema.type in numbers.BITS:
            return numbers.wrapped(numbers.wrapped(int(number), 64), numbers.BITS[schema.type])
        return numbers.single(float(number)) if schema.type == "float32" else float(number)
    except ValueError:
        raise DataError(f"Unable to convert {replacement} (class java.lang.String) to a number") from None


_NO_REPLACEMENT: Final = frozenset(("boolean", "bytes", "array", "map", "struct"))


def _schema_of(value: Any) -> ConnectSchema:
    """Returns the schema that stands for a value without one."""
    kinds: tuple[tuple[type | tuple[type, ...], Any], ...] = (
        (bool, "boolean"),
        (str, "string"),
        (int, "int64"),
        (float, "float64"),
        (Mapping, "map"),
        ((list, tuple), "array"),
    )
    return ConnectSchema(next((name for kind, name in kinds if isinstance(value, kind)), "bytes"))
