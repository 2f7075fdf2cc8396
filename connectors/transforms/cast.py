"""Cast: fields, or a whole key or value, as another primitive type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, get_args

from cdcworker.connectors.transforms import numbers
from cdcworker.connectors.transforms.data import (
    DECIMAL,
    LOGICAL_CLASSES,
    ConnectRecord,
    ConnectSchema,
    DataError,
    Field,
    Type,
    class_name,
    require_map,
    require_struct,
)
from cdcworker.connectors.transforms.fields import changer
from cdcworker.connectors.transforms.transform import Convert, SideTransform
from cdcworker.connectors.transforms.values import text_of

PURPOSE: Final = "cast types"
OUTPUTS: Final = ("int8", "int16", "int32", "int64", "float32", "float64", "boolean", "string")
INPUTS: Final = (*OUTPUTS, "bytes")
WHOLE: Final = None
"""Stands for the whole key or value among the fields to cast."""


def parse_spec(spec: Sequence[str]) -> dict[str | None, Type]:
    """Returns the type of each field that is to be cast. Raises ValueError with Kafka Connect's text."""
    casts: dict[str | None, Type] = {}
    for item in spec:
        parts = item.split(":")
        while parts and not parts[-1]:  # Java's split leaves empty parts at the end out
            parts.pop()
        if len(parts) > 2:
            raise ValueError(f"Invalid rename mapping: {item}")
        casts[parts[0].strip() if len(parts) == 2 else WHOLE] = _output((parts or [""])[-1].strip())
    if WHOLE in casts and len(spec) > 1:
        raise ValueError(
            "Cast transformations that specify a type to cast the entire value to may only specify a single cast in their spec"
        )
    return casts


def _output(name: str) -> Type:
    kind = name.lower()
    if kind not in get_args(Type):
        raise ValueError(f"Invalid type found in casting spec: {name}")
    if kind not in OUTPUTS:
        shown = ", ".join(OUTPUTS).upper()
        raise ValueError(
            f"Cast transformation does not support casting to {name.upper()}; supported types are [{shown}]"
        )
    return kind  # type: ignore[return-value]


class Cast(SideTransform):
    def __init__(self, casts: Mapping[str | None, Type], *, replace_null: bool, is_key: bool) -> None:
        super().__init__(is_key=is_key)
        self._casts = casts
        self._whole = casts.get(WHOLE)
        self._replace_null = replace_null

    def compile(self, schema: ConnectSchema) -> tuple[ConnectSchema, Convert]:
        if self._whole is not None:
            cast_whole = caster(schema, self._whole)
            return _cast_schema(schema, self._whole, keeps_basics=True), lambda value, _: cast_whole(value)
        require_struct(schema, {}, PURPOSE)
        casts = {name: caster(of, self._casts[name]) for name, of in schema.fields if name in self._casts}
        fields = tuple(
            Field(name, _cast_schema(of, self._casts[name]) if name in casts else of) for name, of in schema.fields
        )
        convert = changer(schema, casts, with_default=self._replace_null)
        default = None if schema.default is None else convert(schema.default)
        return replace(schema, fields=fields, default=default), lambda value, _: convert(value)

    def schemaless(self, value: Any, record: ConnectRecord) -> Any:
        if self._whole is not None:
            return cast_value(value, self._whole)
        fields = require_map(value, PURPOSE)
        cast = {name: cast_value(fields.get(name), kind) for name, kind in self._casts.items() if name is not None}
        return {**fields, **cast}


def _cast_schema(schema: ConnectSchema, kind: Type, *, keeps_basics: bool = False) -> ConnectSchema:
    """Returns the schema of what is cast. Of a whole value the name and what goes with it are kept, but not those of a logical type,
    which the number or text is no value of."""
    default = None if schema.default is None else caster(schema, kind)(schema.default)
    if keeps_basics and schema.name not in LOGICAL_CLASSES:
        return replace(schema, type=kind, default=default, fields=(), avro=None, key_schema=None, value_schema=None)
    return ConnectSchema(kind, schema.optional, default, attributes=schema.attributes)


# Values


def caster(schema: ConnectSchema, kind: Type) -> Callable[[Any], Any]:
    """Returns what casts values of a schema. It raises DataError for a value that cannot be cast."""
    if schema.type not in INPUTS:
        return lambda value: None if value is None else _unsupported(schema.type)
    if kind == "string":
        return lambda value: None if value is None else text_of(value, schema)
    convert = _CONVERSIONS[kind]
    if schema.name == DECIMAL:
        return lambda value: None if value is None else convert(numbers.decimal_of(value, schema))
    if schema.type == "bytes":
        return lambda value: None if value is None else _unexpected(value)
    if schema.type == kind:
        return lambda value: value
    return lambda value: None if value is None else convert(value)


def cast_value(value: Any, kind: Type) -> Any:
    """Casts a value without a schema. Raises DataError."""
    if value is None:
        return None
    if isinstance(value, Mapping | list | tuple):
        return _unsupported("map" if isinstance(value, Mapping) else "array")
    if isinstance(value, datetime):
        raise DataError(
            "Cast transformation was passed a value of type class java.util.Date which is not supported by Connect's data API"
        )
    if kind == "string":
        return text_of(value, None)
    return _CONVERSIONS[kind](value)


def _unsupported(kind: str) -> Any:
    shown = ", ".join(INPUTS).upper()
    raise DataError(f"Cast transformation does not support casting from {kind.upper()}; supported types are [{shown}]")


def _unexpected(value: Any) -> Any:
    raise DataError(f"Unexpected type in Cast transformation: class {class_name(value)}")


def _integer(bits: int) -> Callable[[Any], int]:
    def convert(value: Any) -> int:
        if isinstance(value, int | float | Decimal):
            return numbers.narrowed(value, bits)
        if not isinstance(value, str):
            return int(_unexpected(value))
        try:
            return numbers.parsed_integer(value, bits)
        except ValueError:
            raise _out_of_range() from None

    return convert


def _double(value: Any) -> float:
    if isinstance(value, int | float | Decimal):
        try:
            return float(value)
        except OverflowError:
            return float("inf") if value > 0 else float("-inf")
    if not isinstance(value, str):
        return float(_unexpected(value))
    try:
        return numbers.parsed_float(value)
    except ValueError:
        raise _out_of_range() from None


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float | Decimal):
        return numbers.narrowed(value, 64) != 0
    return value.lower() == "true" if isinstance(value, str) else bool(_unexpected(value))


def _out_of_range() -> DataError:
    return DataError("Value was out of range for requested data type")


_CONVERSIONS: Final[dict[str, Callable[[Any], Any]]] = {
    **{kind: _integer(bits) for kind, bits in numbers.BITS.items()},
    "float32": lambda value: numbers.single(_double(value)),
    "float64": _double,
    "boolean": _boolean,
}
