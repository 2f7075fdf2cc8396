"""One documented text per type, as SQL that both databases evaluate: equal values have equal texts, whatever holds them.

A text is a template in which `{0}` stands for the column. The sessions are set to UTC, ISO dates, PostgreSQL's
intervals and the shortest exact floats (`SESSION`), which is part of each text's definition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

SESSION: Final[Mapping[str, str]] = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "search_path": "pg_catalog",
}
BOOLEAN = "({0})::boolean::text"
INTEGER = "({0})::bigint::text"
# 1.50 and 1.5 are one number.
NUMERIC = "trim_scale(({0})::numeric)::text"
# The shortest text that reads back as the same number.
REAL, DOUBLE = "({0})::real::text", "({0})::double precision::text"
PLAIN = "({0})::text"
DATE, TIME, TIMESTAMP = "({0})::date::text", "({0})::time::text", "({0})::timestamp::text"
ZONED = "(({0})::timestamptz AT TIME ZONE 'UTC')::text"
ZONED_TIME = "(({0})::timetz AT TIME ZONE 'UTC')::text"
BYTES = "encode(({0})::bytea, 'hex')"
# Keys sorted, each once, white space removed.
JSON = "({0})::jsonb::text"
# Microseconds; a month is 365.25 / 12 days, as in Debezium's MicroDuration.
DURATION = (
    "CASE WHEN isfinite({0}) THEN trim_scale((extract(year FROM {0}) * 12 + extract(month FROM {0})) * 2629800000000"
    " + extract(day FROM {0}) * 86400000000 + extract(hour FROM {0}) * 3600000000"
    " + extract(minute FROM {0}) * 60000000 + extract(microseconds FROM {0}))::text ELSE ({0})::text END"
)
# A single bit as a boolean, which an empty one is as 0 is.
BIT = "(({0}) = B'1')::text"
# Debezium's Bits carries a number: leading zeros of a varying length are not in it.
BITS = "ltrim(({0})::text, '0')"

FORMS: Final[Mapping[str, str]] = {
    "bool": BOOLEAN,
    **dict.fromkeys(("int2", "int4", "int8", "oid"), INTEGER),
    "float4": REAL,
    "float8": DOUBLE,
    **dict.fromkeys(("numeric", "money"), NUMERIC),
    "date": DATE,
    "time": TIME,
    "timestamp": TIMESTAMP,
    "timestamptz": ZONED,
    "timetz": ZONED_TIME,
    "bytea": BYTES,
    **dict.fromkeys(("json", "jsonb", "hstore"), JSON),
    "varbit": BITS,
}
"""By the name of the source's type; any other type has its own text."""
INTEGERS: Final = frozenset(("int2", "int4", "int8", "oid"))
NUMBERS: Final = frozenset((*INTEGERS, "numeric", "money"))
FLOATS: Final = frozenset(("float4", "float8"))
TEXTS: Final = frozenset(("text", "varchar", "bpchar", "name", "char", "citext", "xml", "ltree"))
CLOCKS: Final = frozenset(("time", "timestamp", "timestamptz"))
COMPOSED: Final = frozenset(("geometry", "geography", "vector", "halfvec", "sparsevec"))
JSON_ELEMENTS: Final = frozenset(("bool", "int2", "int4", "int8", *TEXTS, "uuid"))
"""Elements that `to_jsonb` writes as the sink does."""
ORDERED: Final = frozenset((*INTEGERS, "numeric", "uuid", "date", "time", "timestamp", "timestamptz", "bytea", "bool"))
"""Types whose order depends on no collation and no setting: their keys are walked in order."""


@dataclass(frozen=True, slots=True)
class VerifiedColumn:
    """A column as the catalog has it, domains resolved. `kind` is typtype, `element` the type of an array's elements."""

    name: str
    type: str
    kind: str = "b"
    element: str = ""
    declared: str = ""
    generated: bool = False


@dataclass(frozen=True, slots=True)
class SourceModes:
    """How the source represents values: its `*.handling.mode` keys and similar ones."""

    time: str = "adaptive"
    binary: str = "bytes"
    interval: str = "numeric"
    varbit: str = "bits"
    decimal: str = "precise"
    out_of_range: str = "exact"


@dataclass(frozen=True, slots=True)
class TextPair:
    """SQL templates that make the same text of a value on both sides."""

    source: str
    target: str

    @classmethod
    def same(cls, text: str) -> TextPair:
        return cls(text, text)


def pair(source: VerifiedColumn, target: VerifiedColumn, modes: SourceModes = SourceModes()) -> TextPair | str:
    """The text that both can be brought into, or why there is none."""
    if source.element:
        return _array(source, target, modes)
    if source.type in COMPOSED or (source.kind == "c" and target.type not in TEXTS):
        return f"no common text of {source.declared or source.type} and {target.declared or target.type}"
    found = _special(source, target, modes)
    if found is not None:
        return found
    if source.kind in ("e", "c") or source.type in TEXTS or source.type not in FORMS:
        return TextPair.same(PLAIN)
    if target.element or (target.type in ("json", "jsonb")) != (source.type in ("json", "jsonb", "hstore")):
        return f"no common text of {source.declared or source.type} and {target.declared or target.type}"
    return TextPair.same(rounded(FORMS[source.type], source.type, modes))


def _special(source: VerifiedColumn, target: VerifiedColumn, modes: SourceModes) -> TextPair | None:
    """Pairs whose text is not that of the source's type alone."""
    types = (source.type, target.type)
    if source.type in ("bit", "varbit") and target.type == "bool":
        return TextPair(BIT, BOOLEAN)
    if source.type == "varbit" and target.type in TEXTS:
        # As its digits, with bit.varying.handling.mode=text.
        return TextPair.same(PLAIN)
    if source.type == "bit" and target.type == "varbit":
        return TextPair.same(BITS)
    if source.type == "interval":
        return TextPair.same("({0})::interval::text" if modes.interval == "string" else DURATION)
    if source.type in (NUMBERS | FLOATS) and target.type in FLOATS:
        # As exact as the less exact of the two.
        return TextPair.same(REAL if "float4" in types else DOUBLE)
    if source.type in NUMBERS and target.type in NUMBERS and not INTEGERS.issuperset(types):
        return TextPair.same(NUMERIC)
    if source.type == "date" and target.type in ("timestamp", "timestamptz"):
        return TextPair.same(TIMESTAMP)
    if set(types) == {"timestamp", "timestamptz"}:
        texts = {"timestamp": TIMESTAMP, "timestamptz": ZONED}
        return TextPair(*(rounded(texts[name], name, modes) for name in types))
    if source.type == "bytea" and target.type in TEXTS:
        return encoded(modes.binary)
    return None


def encoded(mode: str) -> TextPair:
    plain = "translate(encode(({0})::bytea, 'base64'), E'\\n', '')"
    text = {"hex": BYTES, "base64-url-safe": plain.replace("E'\\n', ''", "E'+/\\n', '-_'")}.get(mode, plain)
    return TextPair(text, PLAIN)


def rounded(text: str, type_: str, modes: SourceModes) -> str:
    """Connect's own temporal types end at the millisecond."""
    if modes.time != "connect" or type_ not in CLOCKS:
        return text
    if type_ == "time":
        return text.replace("({0})::time", "date_trunc('milliseconds', ({0})::time)")
    return text.replace("{0}", "date_trunc('milliseconds', {0})")


def _array(source: VerifiedColumn, target: VerifiedColumn, modes: SourceModes) -> TextPair | str:
    reason = f"no common text of {source.declared or source.type} and {target.declared or target.type}"
    if target.type in ("json", "jsonb"):
        return TextPair("to_jsonb({0})::text", JSON) if source.element in JSON_ELEMENTS else reason
    if target.type in TEXTS:
        return TextPair.same(PLAIN)
    if not target.element or source.element in ("bit", "interval", *COMPOSED):
        return reason
    if source.element == "varbit" and target.element not in TEXTS:
        return reason
    if modes.time == "connect" and source.element in CLOCKS:
        return reason
    if source.element in ("json", "jsonb"):
        return TextPair.same("({0})::jsonb[]::text")
    if source.element in (NUMBERS | FLOATS) and source.element != target.element:
        return TextPair.same(
            "({0})::double precision[]::text" if target.element in FLOATS else "({0})::numeric[]::text"
        )
    return TextPair.same(PLAIN)


def joined(texts: list[str]) -> str:
    """SQL of a row's text: each as its length, a colon and itself, or `~` for NULL."""
    return " || ".join(f"coalesce(length({text}) || ':' || {text}, '~')" for text in texts) or "''"
