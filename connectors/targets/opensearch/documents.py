"""What a row is as a document: the mapping that its schema asks for, and its JSON field by field."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, NamedTuple

from cdcworker.connectors.record_sink.errors import RECORD_REFUSED
from cdcworker.connectors.record_sink.json_values import JsonValues
from cdcworker.connectors.targets.opensearch.raw_json import joined, last_of_each
from cdcworker.connectors.targets.rows import Row
from cdcworker.connectors.transforms.avro_form import WRITTEN, avro_of
from cdcworker.connectors.transforms.bounded_cache import BoundedCache
from cdcworker.connectors.transforms.data import ConnectSchema, DataError, Header
from cdcworker.connectors.warehouses.source_types import TargetColumn, target_column
from cdcworker.connectors.warehouses.value_text import date_text, timestamp_text
from cdcworker.schemas.errors import CdcError

Text = Callable[[Any], str]
Mapped = dict[str, Any]
SCHEMAS_MAX: Final = 1_024
_NUMBERS: Final = {
    "int8": "byte", "int16": "short", "int32": "integer", "int64": "long", "float32": "float", "float64": "double",
    "boolean": "boolean",
}  # fmt: skip
_MALFORMED: Final = frozenset(("byte", "short", "integer", "long", "float", "double", "date"))
_WORDS: Final = frozenset(("uuid", "inet", "cidr", "macaddr", "macaddr8"))
_ENUM: Final = ("io.debezium.data.Enum", "io.debezium.data.EnumSet", "io.debezium.data.Uuid")
_DAYS: Final = frozenset(("io.debezium.time.IsoTime", "io.debezium.time.ZonedTime"))
_TEXT: Final = {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}
_JSON: Final[Mapping[str, Mapped]] = {
    "object": {"type": "object", "enabled": False},
    "dynamic": {"type": "object", "dynamic": "true"},
    "text": _TEXT,
}
JSON_KINDS: Final = tuple(_JSON)
_BAD: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError)


@dataclass(frozen=True, slots=True)
class DocumentRules:
    """`json`: how columns of JSON are kept, one of JSON_KINDS. `ignores_malformed`: values that do not fit are not searchable, and
    refuse no document."""

    json: str = "object"
    ignores_malformed: bool = False


class _Shape(NamedTuple):
    schema: ConnectSchema
    fields: dict[str, _Field]
    is_plain: bool
    """Whether JSON has all its values as they are."""


class _Field(NamedTuple):
    mapping: Mapped
    write: Text | None
    """None: as JSON has it."""


class DocumentWriter:
    """Writes rows of any schema as documents."""

    def __init__(self, rules: DocumentRules) -> None:
        self._rules = rules
        self._values = JsonValues(numeric=True)
        self._known: BoundedCache[int, _Shape] = BoundedCache(SCHEMAS_MAX)

    def properties(self, schema: ConnectSchema) -> Mapped:
        """Returns the mapping of a struct's fields."""
        return {name: field.mapping for name, field in self._shape(schema).fields.items()}

    def pieces(self, row: Row, without: Collection[str] = ()) -> dict[str, str]:
        """Returns the JSON of each field by its name. CdcError of kind `data` for a value that has none."""
        schema, value = row
        if not isinstance(value, Mapping):
            raise CdcError(RECORD_REFUSED, "the value has no fields, so it is no document")
        if schema is None or schema.type != "struct":
            return {name: self._values.text(None, each) for name, each in value.items() if name not in without}
        known = self._shape(schema).fields
        return {
            name: self._text(known[name].write, of, value.get(name)) for name, of in schema.fields if name not in without
        }  # fmt: skip

    def document(self, row: Row) -> str:
        """Returns the whole document."""
        return self.text(*row) if isinstance(row.value, Mapping) else joined(self.pieces(row))

    def text(self, schema: ConnectSchema | None, value: Any) -> str:
        """Returns any value as JSON."""
        if schema is None or schema.type != "struct" or not isinstance(value, Mapping) or self._shape(schema).is_plain:
            return self._values.text(schema, value)
        return joined(self.pieces(Row(schema, value)))

    def headers_text(self, headers: tuple[Header, ...] | list[Header]) -> str:
        return self._values.headers_text(headers)

    def _text(self, write: Text | None, schema: ConnectSchema, value: Any) -> str:
        if write is None or value is None:
            return self._values.text(schema, value)
        try:
            return write(value)
        except _BAD as error:
            text = f"a value is none of its column's type ({type(error).__name__})"
            raise CdcError(RECORD_REFUSED, text) from None

    def _shape(self, schema: ConnectSchema) -> _Shape:
        known = self._known.get(id(schema))
        if known is None:
            fields = {name: self._field(of) for name, of in schema.fields}
            known = _Shape(schema, fields, all(field.write is None for field in fields.values()))
            self._known[id(schema)] = known
        return known

    def _field(self, schema: ConnectSchema) -> _Field:
        if schema.type == "array" and schema.value_schema is not None:
            inner = self._field(schema.value_schema)
            return _Field(inner.mapping, None if inner.write is None else _each(inner.write))
        if schema.type == "map":
            return _Field({"type": "object", "dynamic": "true"}, None)
        column = _column(schema)
        if column.kind == "variable_decimal":
            return self._number("double", _variable)
        if schema.type == "struct":
            plain = self._shape(schema).is_plain
            return _Field({"properties": self.properties(schema)}, None if plain else lambda v: self.text(schema, v))
        return self._scalar(schema, column)

    def _scalar(self, schema: ConnectSchema, column: TargetColumn) -> _Field:
        kind = column.kind
        if kind in ("date", "timestamp"):
            return self._number("date", _date if kind == "date" else _moment(column.unit))
        if kind == "iso":
            return _Field({"type": "keyword"}, None) if schema.name in _DAYS else self._number("date", None)
        if kind == "decimal":
            return self._number("double", None)
        if schema.type == "bytes":
            return _Field({"type": "binary"}, None)
        if schema.type in _NUMBERS:
            return self._number(_NUMBERS[schema.type], None)
        if column.type.startswith("json"):
            return _Field(_JSON[self._rules.json], None if self._rules.json == "text" else _nested)
        is_word = column.type in _WORDS or schema.name in _ENUM
        return _Field({"type": "keyword"} if is_word else _TEXT, None)

    def _number(self, kind: str, write: Text | None) -> _Field:
        lenient = self._rules.ignores_malformed and kind in _MALFORMED
        return _Field({"type": kind, "ignore_malformed": True} if lenient else {"type": kind}, write)


def _column(schema: ConnectSchema) -> TargetColumn:
    try:
        kind = avro_of(schema, WRITTEN)
    except DataError as error:
        raise CdcError(RECORD_REFUSED, f"a field has no type in a mapping: {error}") from None
    return target_column("field", {"type": kind, **schema.attributes, "name": "field", "default": None})


def _each(write: Text) -> Text:
    return lambda values: "[" + ",".join("null" if value is None else write(value) for value in values) + "]"


def _date(days: int) -> str:
    return f'"{date_text(days)}"'


def _moment(unit: int) -> Text:
    def text(value: int) -> str:
        micros = value // 1000 if unit == 1 else value * (unit // 1000)
        return f'"{timestamp_text(micros).replace(" ", "T", 1)}"'

    return text


def _variable(value: Mapping[str, Any]) -> str:
    number = int.from_bytes(value["value"], "big", signed=True)
    return format(Decimal(number).scaleb(-value["scale"]), "f")


class _TwiceError(Exception):
    """An object has a name twice."""


def _once(pairs: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in pairs}) != len(pairs):
        raise _TwiceError


def _nested(value: str) -> str:
    try:
        json.loads(value, object_pairs_hook=_once)
    except _TwiceError:
        # The server refuses such an object. PostgreSQL keeps it as text, and goes by the last member.
        value = last_of_each(value)
    # As it is: numbers keep their digits.
    return value.replace("\n", " ").replace("\r", " ")
