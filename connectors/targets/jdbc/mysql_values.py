"""Values of records as literals of MySQL and MariaDB. A number that is none is null in a column of numbers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from cdcworker.connectors.targets.jdbc import postgres_values
from cdcworker.connectors.warehouses.mysql import types
from cdcworker.connectors.warehouses.mysql.statements import literal
from cdcworker.connectors.warehouses.source_types import TargetColumn

Literal = Callable[[Any], str]
_NUMBER: Final = re.compile(r"-?[0-9]{1,100}(\.[0-9]{1,100})?")
_EXPONENT_MAX: Final = 100
_TEXTS: Final = ("char", "varchar", "tinytext", "text", "mediumtext", types.TEXT)


def literal_of(column: TargetColumn, kind: str) -> Literal:
    """Returns what makes the literal of a value for a column of the server's type `kind`."""
    made = _literal(column, kind)
    return lambda value: "null" if value is None else made(value)


def _literal(column: TargetColumn, kind: str) -> Literal:
    if column.kind == "bytes":
        return lambda value: f"x'{value.hex()}'"
    if column.kind == "plain":
        return _plain(kind)
    if column.kind == "duration":
        return lambda value: str(int(value))
    if column.kind == "array":
        return _array(column)
    if column.kind == "iso" and column.type.endswith("with time zone"):
        return lambda value: literal(_utc(value))
    text = postgres_values.text_of(column) or str
    if column.kind in ("decimal", "variable_decimal", "decimal_words"):
        return lambda value: _number(text(value), kind)
    if column.kind == "timestamp":
        return lambda value: literal(text(value).removesuffix("+00"))
    return lambda value: literal(text(value))


def _plain(kind: str) -> Literal:
    found = types.parsed(kind)
    is_text = found is not None and found.base in _TEXTS

    def made(value: Any) -> str:
        if isinstance(value, str):
            return literal(value)
        if isinstance(value, bool):
            return "1" if value else "0"
        if isinstance(value, float) and not math.isfinite(value):
            return literal(str(value)) if is_text else "null"
        if isinstance(value, int | float):
            return repr(value)
        raise TypeError

    return made


def _number(text: str, kind: str) -> str:
    """Decimals without exponents; NaN and infinities are words in texts."""
    if not text[-1:].isdigit():
        return literal(text) if kind == types.TEXT else "null"
    if not _NUMBER.fullmatch(text):
        number = Decimal(text)
        if abs(number.adjusted()) > _EXPONENT_MAX:
            return literal(text)  # the server says that it is out of range
        text = format(number, "f")
    return literal(text) if kind == types.TEXT else text


def _utc(text: str) -> str:
    """A moment as the sessions read it, which are in UTC."""
    if text.endswith("Z"):
        return text[:-1].replace("T", " ")
    try:
        return datetime.fromisoformat(text).astimezone(UTC).replace(tzinfo=None).isoformat(" ")
    except (ValueError, OverflowError):
        return text  # the server says that it is no moment


def _array(column: TargetColumn) -> Literal:
    """Each array as JSON: numbers, texts and truths as such, all else as its text."""
    assert column.element is not None
    element = column.element
    convert = postgres_values.text_of(element)

    def item(value: Any) -> Any:
        if value is None or (element.kind == "plain" and not isinstance(value, float)):
            return value
        if isinstance(value, bytes):
            return value.hex() if element.kind == "bytes" else (convert or str)(value)
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        return value if convert is None else convert(value)

    def made(value: Sequence[Any]) -> str:
        return literal(json.dumps([item(one) for one in value], ensure_ascii=False))

    return made


def rows_text(rows: Sequence[Sequence[Any]], literals: Sequence[Literal]) -> list[str]:
    """Returns rows as they stand behind VALUES."""
    columns = [list(map(convert, values)) for convert, values in zip(literals, zip(*rows, strict=True), strict=True)]
    return [f"({','.join(row)})" for row in zip(*columns, strict=True)]
