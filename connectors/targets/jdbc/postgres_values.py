"""Values of records as PostgreSQL reads them: each column of rows becomes the text of one array."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from cdcworker.connectors.warehouses import value_text
from cdcworker.connectors.warehouses.source_types import TargetColumn

Text = Callable[[Any], str]
Column = Callable[[Sequence[Any]], str]
"""Makes of a column's values the text of an array."""
_NUMBERS: Final = frozenset((bool, int, float, type(None)))
_BARE: Final = ("boolean", "int", "long", "float", "double")


def text_of(column: TargetColumn) -> Text | None:
    """Returns what makes the text of a value that is there; None: it is text already."""
    made = _TEXTS.get(column.kind)
    if made is not None:
        return made(column)
    return None if _base(column) == "string" else _plain


def column_text(column: TargetColumn) -> Column:
    """Returns what makes the text of an array of all values of a column."""
    convert = text_of(column)
    if column.kind == "plain" and _base(column) in _BARE:
        return _bare
    return lambda values: quoted(values if convert is None else [None if v is None else convert(v) for v in values])


def quoted(texts: Sequence[str | None]) -> str:
    """Returns the text of an array of texts."""
    if None not in texts:
        joined = '","'.join(texts)  # type: ignore[arg-type]  # none of them is missing
        if "\\" not in joined and joined.count('"') == 2 * max(0, len(texts) - 1):
            return f'{{"{joined}"}}' if texts else "{}"
    return "{" + ",".join("NULL" if text is None else _element(text) for text in texts) + "}"


def _element(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _bare(values: Sequence[Any]) -> str:
    if not _NUMBERS.issuperset(map(type, values)):
        # JSON holds texts where its schema says numbers: the server judges them.
        return quoted([None if value is None else str(value) for value in values])
    if None in values:
        return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"
    return "{" + ",".join(map(str, values)) + "}"


def _base(column: TargetColumn) -> str:
    return str(column.avro.get("type") if isinstance(column.avro, Mapping) else column.avro)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _micros(column: TargetColumn) -> Callable[[int], int]:
    unit = column.unit
    return (lambda value: value // 1000) if unit == 1 else (lambda value: value * (unit // 1000))


def _date(_column: TargetColumn) -> Text:
    return value_text.date_text


def _time(column: TargetColumn) -> Text:
    micros = _micros(column)
    return lambda value: value_text.time_text(micros(value))


def _timestamp(column: TargetColumn) -> Text:
    micros = _micros(column)
    if not column.type.endswith("with time zone"):
        return lambda value: value_text.timestamp_text(micros(value))

    def zoned(value: int) -> str:
        text = value_text.timestamp_text(micros(value))
        return text if "infinity" in text else f"{text.removesuffix(' BC')}+00{' BC' if text.endswith(' BC') else ''}"

    return zoned


def _iso(column: TargetColumn) -> Text:
    if column.type == "date":
        return lambda value: value_text.iso_text(value.removesuffix("Z"))
    return value_text.iso_text


def _duration(_column: TargetColumn) -> Text:
    special = {value_text.DURATION_INFINITY: "infinity", -value_text.DURATION_INFINITY - 1: "-infinity"}
    return lambda value: special.get(value) or f"{value} microseconds"


def _decimal(column: TargetColumn) -> Text:
    scale = column.unit
    return lambda value: value_text.decimal_text(value, scale)


def _variable_decimal(_column: TargetColumn) -> Text:
    def text(value: Mapping[str, Any]) -> str:
        if not value["value"]:
            return value_text.VARIABLE_SPECIAL.get(value["scale"], "NaN")
        return value_text.decimal_text(value["value"], value["scale"])

    return text


def _bits(column: TargetColumn) -> Text:
    fixed = column.unit if column.type.startswith("bit(") else 0

    def text(value: bytes) -> str:
        number = int.from_bytes(value, "little")
        return format(number, f"0{fixed}b") if fixed else format(number, "b") if number else ""

    return text


def _array(column: TargetColumn) -> Text:
    assert column.element is not None
    convert = text_of(column.element)

    def text(value: Sequence[Any]) -> str:
        return quoted([None if one is None else one if convert is None else convert(one) for one in value])

    return text


def _words(value: str) -> str:
    return value_text.SPECIAL_DECIMALS.get(value, value)


def json_text(value: Any) -> str:
    """Returns a value as JSON, unless it is the text of one."""
    return value if isinstance(value, str) else json.dumps(value, default=_jsonable, ensure_ascii=False)


def _jsonable(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


_TEXTS: Final[Mapping[str, Callable[[TargetColumn], Text]]] = {
    "bytes": lambda _: lambda value: "\\x" + value.hex(),
    "bits": _bits,
    "decimal": _decimal,
    "variable_decimal": _variable_decimal,
    "decimal_words": lambda _: _words,
    "date": _date,
    "time": _time,
    "timestamp": _timestamp,
    "iso": _iso,
    "duration": _duration,
    "point": lambda _: lambda value: f"({value['x']!r},{value['y']!r})",
    "array": _array,
    "json": lambda _: json_text,
}
