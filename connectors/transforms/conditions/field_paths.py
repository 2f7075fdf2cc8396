"""Reads the fields that an expression names out of records of one schema."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

from cdcworker.connectors.transforms.conditions.expression_text import ExpressionPath
from cdcworker.connectors.transforms.data import DECIMAL, ConnectRecord, ConnectSchema, DataError, Header
from cdcworker.connectors.transforms.values import text_of

Read = Callable[[ConnectRecord], Any]
"""Returns the value of a field of a record. A way that leads through a null ends there: the value is null."""
HEADERS: Final = ("header", "headers")
VARIABLE_SCALE: Final = "io.debezium.data.VariableScaleDecimal"
SPECIAL: Final = {0: math.nan, 1: math.inf, -1: -math.inf}
"""The special values of a numeric without a scale, by the scale that their empty bytes have."""


def reader_of(path: ExpressionPath, record: ConnectRecord) -> Read:
    """Returns what reads a field of records with the schemas of this one. Raises DataError for a field that they do not have."""
    root, names = path.names[0], path.names[1:]
    if root == "topic":
        return _of_topic(path)
    if root in HEADERS:
        return _of_header(path)
    schema = record.key_schema if root == "key" else record.value_schema
    steps, convert = _steps(schema, path)
    is_key = root == "key"

    def read(each: ConnectRecord) -> Any:
        found = each.key if is_key else each.value
        try:
            for step in steps:
                if found is None:
                    return None
                found = found.get(step)
        except AttributeError:  # of a record without a schema
            raise DataError(f"{'.'.join(path.names)} leads through a value without fields") from None
        return found if convert is None or found is None else convert(found)

    if path.is_asked:
        return _presence(names, schema, read)
    return read


def _presence(names: Sequence[str], schema: ConnectSchema | None, read: Read) -> Read:
    """Returns whether there is a field: one that the schema has, and whose value is not null."""
    if schema is not None and not _has(schema, names):
        return lambda _: False
    return lambda record: read(record) is not None


def _has(schema: ConnectSchema, names: Sequence[str]) -> bool:
    for name in names:
        inner = schema.by_name.get(name)
        if inner is None:
            return False
        schema = inner
    return True


def _steps(schema: ConnectSchema | None, path: ExpressionPath) -> tuple[Sequence[str], Callable[[Any], Any] | None]:
    """Returns the names to follow, and what makes CEL's value of the one at the end."""
    names = path.names[1:]
    if schema is None:
        return names, None
    for number, name in enumerate(names):
        inner = schema.by_name.get(name) if schema.type == "struct" else None
        if inner is None and schema.type == "map":
            return names, None
        if inner is None:
            if path.is_asked:
                return names, None
            known = ".".join(path.names[: number + 1])
            raise DataError(f"Unknown field: {name} in {known}")
        schema = inner
    return names, _number_of(schema)


def _number_of(schema: ConnectSchema) -> Callable[[Any], Any] | None:
    """Returns what makes numbers of decimals, also of those in an array; None for values of other types."""
    if schema.type == "array" and schema.value_schema is not None:
        convert = _number_of(schema.value_schema)
        return convert and (lambda items: [None if item is None else convert(item) for item in items])
    if schema.name == VARIABLE_SCALE:
        return lambda value: _number(value["value"], value["scale"], SPECIAL.get(value["scale"], math.nan))
    if schema.name == DECIMAL:
        scale = int((schema.parameters or {}).get("scale", "0"))
        return lambda value: _number(value, scale, math.nan)
    return None


def _number(unscaled: bytes, scale: int, special: float) -> float:
    """Returns a decimal as a number. Empty bytes are a special value of PostgreSQL's numeric."""
    return float(Decimal(int.from_bytes(unscaled, "big", signed=True)).scaleb(-scale)) if unscaled else special


def _of_topic(path: ExpressionPath) -> Read:
    if len(path.names) > 1:
        raise DataError("topic is a text and has no fields")
    return lambda record: record.topic


def _of_header(path: ExpressionPath) -> Read:
    """Returns what reads a header as text. With a last name `value`, which is Debezium's way to say it, a number or a boolean is what
    it is."""
    names = path.names[1:]
    is_native = len(names) == 2 and names[1] == "value"
    if is_native:
        names = names[:1]
    if len(names) != 1:
        raise DataError("a header is named as headers['name']")
    name = names[0]

    def read(record: ConnectRecord) -> Any:
        found = next((header for header in record.headers if header.key == name), None)
        if is_native and found is not None and found.schema is not None and isinstance(found.value, int | float):
            return found.value
        return None if found is None else _text(found)

    if path.is_asked:
        return lambda record: any(header.key == name for header in record.headers)
    return read


def _text(header: Header) -> str | None:
    if header.value is None:
        return None
    if header.schema is None and isinstance(header.value, bytes):
        return header.value.decode(errors="replace")
    return text_of(header.value, header.schema)
