"""Values as the JSON of Kafka Connect's converters holds them, read by the schema that says what they are."""

from __future__ import annotations

import base64
from decimal import Decimal
from typing import Any, Final

from cdcworker.connectors.formats.format import Convert
from cdcworker.connectors.transforms import numbers
from cdcworker.connectors.transforms.data import DECIMAL, ConnectSchema

ONE_OF: Final = "io.confluent.connect.json.OneOf"
"""The name of a struct that stands for a value of one of several types."""
UNFIT: Final = (KeyError, TypeError, ValueError, AttributeError, RecursionError, ArithmeticError)
"""What a value raises that does not fit its schema."""


def reading(schema: ConnectSchema) -> Convert:
    """Returns what makes values of what the JSON of a schema holds: bytes are base64 there, decimals may be numbers. It raises
    one of `UNFIT` for what does not fit."""
    if schema.name == ONE_OF:
        return _one_of([(field.name, reading(field.schema)) for field in schema.fields])
    if schema.type == "struct":
        steps = [(name, reading(of)) for name, of in schema.fields]
        return lambda value: None if value is None else {name: read(value.get(name)) for name, read in steps}
    if schema.type in ("array", "map") and schema.value_schema is not None:
        read = reading(schema.value_schema)
        return each(read) if schema.type == "array" else each_value(read)
    if schema.type == "bytes":
        return _decimal(schema) if schema.name == DECIMAL else _bytes
    if schema.type in ("float32", "float64"):
        return _float
    return _checked(schema.type)


def _one_of(branches: list[tuple[str, Convert]]) -> Convert:
    def read(value: Any) -> Any:
        """A value is that of the first branch that it fits."""
        if value is None:
            return None
        for name, convert in branches:
            try:
                return {name: convert(value)}
            except UNFIT:
                continue
        raise ValueError("no branch fits")

    return read


def each(convert: Convert) -> Convert:
    """Returns what converts the items of a list."""

    def convert_items(items: Any) -> Any:
        if items is not None and not isinstance(items, list):
            raise TypeError("no array")
        return None if items is None else [convert(item) for item in items]

    return convert_items


def each_value(convert: Convert) -> Convert:
    """Returns what converts the values of a mapping."""
    return lambda items: None if items is None else {key: convert(item) for key, item in items.items()}


def _bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError("no base64")
    return base64.b64decode(value, validate=True)


def _float(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, str):
        return _NO_NUMBERS[value]
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise TypeError("no number")
    return float(value)


_NO_NUMBERS: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
"""What JSON has no numbers for, as Jackson writes it."""


def _decimal(schema: ConnectSchema) -> Convert:
    scale = int((schema.parameters or {}).get("scale", "0"))

    def read(value: Any) -> bytes | None:
        if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
            return numbers.decimal_bytes(Decimal(repr(value) if isinstance(value, float) else value), scale)
        return _bytes(value)

    return read


def _checked(kind: str) -> Convert:
    """Returns what takes values of one class. A whole number may be written with a fraction, as other languages do."""
    wanted = {"string": str, "boolean": bool}.get(kind, int)
    limit = 1 << numbers.BITS.get(kind, 1) - 1

    def read(value: Any) -> Any:
        if wanted is int and isinstance(value, float | Decimal) and value == int(value):
            value = int(value)
        if type(value) is int and wanted is int and not -limit <= value < limit:
            raise ValueError("out of range")
        if value is None or type(value) is wanted:
            return value
        raise TypeError("another type")

    return read
