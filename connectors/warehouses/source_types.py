"""Which PostgreSQL type a column of a change has in the target, and whether an existing column can take it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

Kind = str
"""Names how values become text; see `value_text`."""

_MICRO_TIME = "io.debezium.time.MicroTime"
_TEMPORAL: dict[str, tuple[Kind, int]] = {
    # Connect's semantic name → (conversion, nanoseconds per unit)
    "io.debezium.time.Date": ("date", 0),
    "org.apache.kafka.connect.data.Date": ("date", 0),
    "io.debezium.time.Time": ("time", 1_000_000),
    "org.apache.kafka.connect.data.Time": ("time", 1_000_000),
    _MICRO_TIME: ("time", 1_000),
    "io.debezium.time.NanoTime": ("time", 1),
    "io.debezium.time.Timestamp": ("timestamp", 1_000_000),
    "org.apache.kafka.connect.data.Timestamp": ("timestamp", 1_000_000),
    "io.debezium.time.MicroTimestamp": ("timestamp", 1_000),
    "io.debezium.time.NanoTimestamp": ("timestamp", 1),
    "io.debezium.time.ZonedTimestamp": ("iso", 0),
    "io.debezium.time.IsoTimestamp": ("iso", 0),
    "io.debezium.time.IsoDate": ("iso", 0),
    "io.debezium.time.IsoTime": ("iso", 0),
    "io.debezium.time.MicroDuration": ("duration", 0),
    "io.debezium.data.Bits": ("bits", 0),
    "io.debezium.data.geometry.Point": ("point", 0),
    "io.debezium.data.VariableScaleDecimal": ("variable_decimal", 0),
}
_DEFAULT_TYPE = {
    "decimal": "numeric",
    "variable_decimal": "numeric",
    "date": "date",
    "time": "time without time zone",
    "timestamp": "timestamp without time zone",
    "duration": "interval",
    "bits": "bit varying",
    "bytes": "bytea",
    "point": "point",
    "json": "jsonb",
}
_NAME_TYPE = {
    "io.debezium.time.ZonedTimestamp": "timestamp with time zone",
    "io.debezium.time.ZonedTime": "time with time zone",
    "io.debezium.time.IsoTimestamp": "timestamp without time zone",
    "io.debezium.time.IsoDate": "date",
    "io.debezium.time.IsoTime": "time without time zone",
    "io.debezium.time.Interval": "interval",
    "io.debezium.data.Uuid": "uuid",
    "io.debezium.data.Json": "jsonb",
}
_AVRO_TYPE = {
    "boolean": "boolean",
    "int": "integer",
    "long": "bigint",
    "float": "real",
    "double": "double precision",
    "null": "text",
}
_NUMBERS = frozenset({"smallint", "integer", "bigint", "numeric", "real", "double precision"})
_TEXTS = frozenset(
    {
        *("text", "character varying", "character", "uuid", "json", "jsonb", "inet", "cidr", "macaddr", "macaddr8"),
        *("int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange", "tsvector", "tsquery", "pg_lsn"),
        *("box", "lseg", "path", "polygon", "circle", "line", "jsonpath", "interval", "time with time zone"),
        *("int4multirange", "int8multirange", "nummultirange", "tsmultirange", "tstzmultirange", "datemultirange"),
        "numeric",
    }
)
_FITTING: dict[str, frozenset[str]] = {
    # Which of the source's types a conversion can give.
    "decimal": frozenset({"numeric"}),
    "variable_decimal": frozenset({"numeric"}),
    "decimal_words": frozenset({"numeric"}),
    "date": frozenset({"date"}),
    "time": frozenset({"time without time zone"}),
    "timestamp": frozenset({"timestamp without time zone", "timestamp with time zone"}),
    "iso": frozenset({"timestamp without time zone", "timestamp with time zone", "date", "time without time zone"}),
    "duration": frozenset({"interval"}),
    "bits": frozenset({"bit", "bit varying"}),
    "bytes": frozenset({"bytea"}),
    "point": frozenset({"point"}),
    "json": frozenset({"json", "jsonb"}),
}
_TYPE = re.compile(r'([a-z_" 0-9]+?)(?:\((-?\d+)(?:,\s*(-?\d+))?\))?( with(?:out)? time zone)?((?:\[\])*)')


@dataclass(frozen=True, slots=True)
class ParsedType:
    """A type as `format_type` prints it, taken apart."""

    base: str
    args: tuple[int, ...] = ()
    array: bool = False

    def __str__(self) -> str:
        args = f"({','.join(map(str, self.args))})" if self.args else ""
        head, zone, tail = self.base.partition(" with")
        return f"{head}{args}{zone}{tail}" + ("[]" if self.array else "")


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """One column: the type it gets in the target and how its values are converted to that type's text."""

    name: str
    type: str
    kind: Kind
    unit: int = 0
    """Decimals: the scale. Times: nanoseconds per unit. Bits: the length."""
    element: TargetColumn | None = None
    avro: Any = None
    default: Any = None
    field: str = ""
    """The column's name in the Avro record, where it is escaped."""


def parse_type(text: str) -> ParsedType | None:
    found = _TYPE.fullmatch(text.strip())
    if not found:
        return None
    base, first, second, zone, dims = found.groups()
    args = tuple(int(arg) for arg in (first, second) if arg is not None)
    return ParsedType(base.strip() + (zone or ""), args, bool(dims))


def target_column(name: str, member: Mapping[str, Any]) -> TargetColumn:
    """The target of one field of a Value record; `member` is the field as it stands in the schema."""
    column = _column(name, _concrete(member["type"]), str(member.get("cdc.type", "")))
    default = None if column.kind in ("array", "json", "point", "variable_decimal") else member.get("default")
    return replace(column, default=default, field=str(member["name"]))


def _concrete(node: Any) -> Any:
    if isinstance(node, list):
        rest = [branch for branch in node if branch != "null"]
        return rest[0] if len(rest) == 1 else rest
    return node


def _column(name: str, avro: Any, source: str) -> TargetColumn:
    attributes: Mapping[str, Any] = avro if isinstance(avro, dict) else {}
    base = attributes.get("type", avro)
    semantic = str(attributes.get("connect.name", ""))
    wanted = parse_type(source) if source else None
    if base == "array":
        inner = str(ParsedType(wanted.base, wanted.args)) if wanted and wanted.array else ""
        element = _column(name, _concrete(attributes["items"]), inner)
        if element.kind in ("array", "json"):
            return TargetColumn(name, "jsonb", "json", avro=avro)
        return TargetColumn(name, element.type + "[]", "array", element=element, avro=avro)
    kind, unit = _conversion(base, semantic, attributes, wanted)
    chosen = None if wanted is None or wanted.array else _fitting(kind, base, wanted)
    fallback = _NAME_TYPE.get(semantic) or _DEFAULT_TYPE.get(kind) or _AVRO_TYPE.get(str(base), "text")
    if chosen is None and kind == "decimal" and 0 < int(attributes.get("precision", 0)) <= 1000:
        fallback = "numeric" if int(attributes["precision"]) == 64 else f"numeric({attributes['precision']},{unit})"
    return TargetColumn(name, chosen or fallback, kind, unit, avro=avro)


def _conversion(base: Any, semantic: str, attributes: Mapping[str, Any], wanted: ParsedType | None) -> tuple[Kind, int]:
    parameters = attributes.get("connect.parameters") or {}
    if semantic == "org.apache.kafka.connect.data.Decimal" or attributes.get("logicalType") == "decimal":
        return "decimal", int(attributes.get("scale", parameters.get("scale", 0)))
    if semantic == "io.debezium.data.Bits":
        return "bits", int(parameters.get("length", 0))
    if semantic == _MICRO_TIME and wanted is not None and wanted.base == "time":
        # MySQL's TIME is a span of up to 838 hours, before and after zero.
        return "duration", 0
    if semantic in _TEMPORAL:
        return _TEMPORAL[semantic]
    if isinstance(base, list) or base in ("record", "map"):
        return "json", 0
    if base in ("bytes", "fixed"):
        return "bytes", 0
    if base == "string" and wanted is not None and wanted.base == "numeric":
        return "decimal_words", 0
    return "plain", 0


def _fitting(kind: Kind, base: Any, wanted: ParsedType) -> str | None:
    """The source's own type, if the values as they are sent can be read as it."""
    if kind == "plain":
        fits = {"string": _TEXTS, "boolean": frozenset({"boolean"})}.get(str(base), _NUMBERS)
        return str(wanted) if wanted.base in fits else None
    if kind == "bits" and not wanted.args and wanted.base == "bit":
        return None
    return str(wanted) if wanted.base in _FITTING[kind] else None


# -- changing an existing column ----------------------------------------------------------------------------------------

_INTEGERS = {"smallint": 5, "integer": 10, "bigint": 19}


def widened(existing: str, wanted: str) -> str | None:
    """The type an existing column needs to hold values of type `wanted` besides its own: `existing` if it does
    already. None: no type holds both without losing something."""
    if existing == wanted or existing == "text":
        return existing
    have, want = parse_type(existing), parse_type(wanted)
    if have is None or want is None or have.array != want.array:
        return "text" if wanted == "text" else None
    if have.array:
        inner = widened(str(ParsedType(have.base, have.args)), str(ParsedType(want.base, want.args)))
        return None if inner is None else inner + "[]"
    if want.base == "text":
        return "text"
    return _widened(have, want)


def _widened(have: ParsedType, want: ParsedType) -> str | None:
    if have.base in (*_INTEGERS, "numeric") and want.base in (*_INTEGERS, "numeric"):
        return _widened_number(have, want)
    if have.base == want.base:
        return str(have) if not have.args else str(want) if not want.args else str(max(have, want, key=_room))
    pair = (have.base, want.base)
    if pair in (("double precision", "real"), ("timestamp without time zone", "date"), ("jsonb", "json")):
        return str(have)
    if pair == ("json", "jsonb") or (have.base == "double precision" and want.base in ("smallint", "integer")):
        return str(have)
    if pair == ("date", "timestamp without time zone") or (
        want.base == "double precision" and have.base in ("real", "smallint", "integer")
    ):
        return str(want)
    if {have.base, want.base} <= {"character", "character varying"}:
        sizes = [part.args[0] if part.args else 0 for part in (have, want)]
        return f"character varying({max(sizes)})" if all(sizes) else "text"
    return None


def _room(part: ParsedType) -> tuple[int, ...]:
    return part.args


def _widened_number(have: ParsedType, want: ParsedType) -> str:
    if have.base in _INTEGERS and want.base in _INTEGERS:
        return max((have.base, want.base), key=lambda name: _INTEGERS[name])
    digits = []
    for part in (have, want):
        if part.base == "numeric" and not part.args:
            return "numeric"
        precision, scale = (*part.args, 0)[:2] if part.args else (_INTEGERS[part.base], 0)
        digits.append((precision - scale, scale))
    whole, scale = max(d[0] for d in digits), max(d[1] for d in digits)
    if have.base == "numeric" and digits[0] == (whole, scale):
        return str(have)
    return f"numeric({whole + scale},{scale})"
