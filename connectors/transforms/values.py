"""Kafka Connect's texts of values: what a literal means, and how the SimpleHeaderConverter writes a header."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

from cdcworker.connectors.transforms import numbers
from cdcworker.connectors.transforms.data import (
    DATE,
    DAY_MS,
    DECIMAL,
    TIME,
    TIMESTAMP,
    ConnectSchema,
    DataError,
    class_name,
)
from cdcworker.connectors.transforms.dates import (
    ISO_DATE,
    ISO_TIME,
    ISO_TIMESTAMP,
    date_format,
    iso_text,
    to_millis,
)

DEPTH_MAX: Final = 64
"""The most lists and maps inside of each other in a literal."""


class Literal(NamedTuple):
    """A value and the schema that was made for it."""

    schema: ConnectSchema | None
    value: Any


NULL: Final = Literal(None, None)
_STRING: Final = ConnectSchema("string")
_BOOLEAN: Final = ConnectSchema("boolean")
_TEMPORALS: Final = {
    13: (ISO_TIME, ConnectSchema("int32", name=TIME, version=1), 1),
    24: (ISO_TIMESTAMP, ConnectSchema("int64", name=TIMESTAMP, version=1), 1),
    10: (ISO_DATE, ConnectSchema("int32", name=DATE, version=1), DAY_MS),
}
"""By the length of the text: its pattern, its schema, and the unit of its value in milliseconds."""
_ORDER: Final = ("int8", "int16", "int32", "int64", "float32", "float64")
_TOKEN: Final = re.compile(r'[:,{}\[\]"]|(?:\\.|[^:,{}\[\]"\\])+|\\', re.DOTALL)


# Texts of values


def text_of(value: Any, schema: ConnectSchema | None, *, embedded: bool = False) -> str:
    """Returns the text of a value as Kafka Connect's `Values.convertToString`. Raises DataError."""
    if type(value) is str and not embedded:
        return value
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if schema is not None and schema.name in (DATE, TIME, TIMESTAMP):
        return iso_text(value * DAY_MS if schema.name == DATE else value)
    if isinstance(value, datetime):
        return iso_text(to_millis(value))
    if schema is not None and schema.name == DECIMAL and isinstance(value, bytes | bytearray):
        return str(numbers.decimal_of(value, schema))
    if isinstance(value, int | float | Decimal):
        return numbers.number_text(value, is_single=schema is not None and schema.type == "float32")
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"') if embedded else value
        return f'"{escaped}"' if embedded else escaped
    if isinstance(value, bytes | bytearray | memoryview):
        encoded = base64.b64encode(value).decode()
        return f'"{encoded}"' if embedded else encoded
    return _text_of_many(value, schema)


def _text_of_many(value: Any, schema: ConnectSchema | None) -> str:
    if isinstance(value, list | tuple):
        item = schema.value_schema if schema is not None else None
        return "[" + ",".join([text_of(each, item, embedded=True) for each in value]) + "]"
    if isinstance(value, Mapping):
        pairs: list[tuple[str, Any, ConnectSchema | None]]
        if schema is not None and schema.type == "struct":
            pairs = [(text_of(name, None, embedded=True), schema.of(value, name), of) for name, of in schema.fields]
        else:
            keys = schema.key_schema if schema is not None else None
            values = schema.value_schema if schema is not None else None
            pairs = [(text_of(key, keys, embedded=True), each, values) for key, each in value.items()]
        return "{" + ",".join([f"{key}:{text_of(each, of, embedded=True)}" for key, each, of in pairs]) + "}"
    raise DataError(f"Failed to serialize unexpected value type {class_name(value)}")


# Literals


def parse_literal(text: str) -> Literal:
    """Returns what a text means to Kafka Connect's `Values.parseString`: null, a boolean, a number of the smallest type that
    holds it, a moment, a list, a map, or else the text itself."""
    if not text:
        return Literal(_STRING, text)
    return _Parser(text).parse(embedded=False)


class _Parser:
    """Reads a literal token by token. `_at` is the number of the next token."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _TOKEN.findall(text)
        self._at = 0
        self._depth = 0

    def _has_next(self) -> bool:
        return self._at < len(self._tokens)

    def _next(self) -> str:
        self._at += 1
        token: str = self._tokens[self._at - 1]
        return token

    def _take(self, expected: str) -> bool:
        """Takes the next token if it is this one; blank tokens before it are passed over, also where it is not."""
        while self._at + 1 < len(self._tokens) and not self._tokens[self._at].strip():
            self._at += 1
        if self._has_next() and self._tokens[self._at].strip() == expected:
            self._at += 1
            return True
        return False

    def parse(self, *, embedded: bool) -> Literal:
        if not self._has_next():
            return NULL
        if embedded and self._take('"'):
            return self._quoted()
        for word, literal in (("null", NULL), ("true", Literal(_BOOLEAN, True)), ("false", Literal(_BOOLEAN, False))):
            at = self._at
            if self._take(word) and (embedded or not self._has_next()):
                return literal
            self._at = at
        at = self._at
        try:
            for opening, read in (("[", self._list), ("{", self._map)):
                if self._take(opening):
                    return self._nested(read)
        except DataError:
            self._at = at
        token = self._next()
        return self._simple(token.strip(), embedded=embedded) if token.strip() else Literal(_STRING, token)

    def _nested(self, read: Callable[[], Literal]) -> Literal:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise DataError("The value is nested too deeply")
        try:
            return read()
        finally:
            self._depth -= 1

    def _simple(self, token: str, *, embedded: bool) -> Literal:
        if token[0].isdigit():
            at = self._at
            following = "".join(self._tokens[at : at + 4])
            found = _temporal(token + following) if at + 4 <= len(self._tokens) else None
            if found is not None:
                self._at = at + 4
                return found
            found = _temporal(token)
            if found is not None:
                return found
        if token[0].isdigit() or token[0] in "+-":
            try:
                return _number(numbers.parsed_decimal(token))
            except ValueError:
                pass
        if embedded:
            raise DataError("Failed to parse embedded value")
        return Literal(_STRING, self._text)

    def _quoted(self) -> Literal:
        content = ""
        while self._has_next() and not self._take('"'):
            content += self._next()
        return _temporal(content) or Literal(_STRING, content)

    def _list(self) -> Literal:
        items: list[Literal] = []
        while self._has_next():
            if self._take("]"):
                schema = ConnectSchema("array", value_schema=_common(items))
                return Literal(schema, [_aligned(item, schema.value_schema) for item in items])
            if self._take(","):
                raise DataError("Unable to parse an empty array element")
            items.append(self.parse(embedded=True))
            at = self._at
            if self._take("]"):
                self._at = at
            elif not self._take(","):
                raise DataError("Array elements missing ',' delimiter")
        raise DataError("Array is missing terminating ']'")

    def _map(self) -> Literal:
        keys: list[Literal] = []
        values: list[Literal] = []
        while self._has_next():
            if self._take("}"):
                schema = ConnectSchema("map", key_schema=_common(keys), value_schema=_common(values))
                pairs = zip(keys, values, strict=True)
                entries = {_aligned(k, schema.key_schema): _aligned(v, schema.value_schema) for k, v in pairs}
                return Literal(schema, entries)
            if self._take(","):
                raise DataError("Unable to parse a map entry with no key or value")
            key = self.parse(embedded=True)
            if key.value is None or isinstance(key.value, list | dict):
                raise DataError("Map entry may not have a null key")
            if not self._take(":"):
                raise DataError("Map entry is missing ':'")
            keys.append(key)
            values.append(self.parse(embedded=True))
            self._take(",")
        raise DataError("Map is missing terminating '}'")


def _temporal(text: str) -> Literal | None:
    text = text.replace("\\:", ":")
    if len(text) not in _TEMPORALS:
        return None
    pattern, schema, unit_ms = _TEMPORALS[len(text)]
    try:
        return Literal(schema, date_format(pattern).parse(text) // unit_ms)
    except ValueError:
        return None


def _number(number: Decimal) -> Literal:
    """Returns a number in the smallest type that holds it: an integer, a float, or a Decimal."""
    if number == number.to_integral_value():
        whole = int(number)
        for kind, bits in numbers.BITS.items():
            if numbers.wrapped(whole, bits) == whole:
                return Literal(ConnectSchema(kind), whole)  # type: ignore[arg-type]
    if numbers.scale_of(number) != 0:
        for kind, value in (("float32", numbers.single(float(number))), ("float64", float(number))):
            if abs(value) != float("inf"):
                return Literal(ConnectSchema(kind), value)  # type: ignore[arg-type]
    scale = numbers.scale_of(number)
    schema = ConnectSchema("bytes", name=DECIMAL, version=1, parameters={"scale": str(scale)})
    return Literal(schema, numbers.decimal_bytes(number, scale))


def _common(items: list[Literal]) -> ConnectSchema | None:
    """Returns the schema that all items have, numbers in the widest type among them; None where there is none. It is optional
    where an item is null."""
    found: ConnectSchema | None = None
    for schema in (item.schema for item in items if item.schema is not None):
        if found is None or found == schema:
            found = schema
        elif found.type in _ORDER and schema.type in _ORDER and found.name is schema.name is None:
            found = max(found, schema, key=lambda each: _ORDER.index(each.type))
        else:
            return None
    has_null = any(item.value is None for item in items)
    return replace(found, optional=True) if found is not None and has_null else found


def _aligned(item: Literal, schema: ConnectSchema | None) -> Any:
    is_float = schema is not None and schema.type in ("float32", "float64")
    return float(item.value) if is_float and isinstance(item.value, int) else item.value
