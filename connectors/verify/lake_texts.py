"""The texts of values in a lake: the source's database makes its own by SQL, and these are made of Arrow values. Where a lake
cannot hold a value (a year past 9999, a decimal that is no number) the source's text is that of what stands for it there."""

from __future__ import annotations

import datetime as dt
import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from cdcworker.connectors.verify import canonical_text
from cdcworker.connectors.verify.canonical_text import SourceModes, TextPair, VerifiedColumn

LAKE: Final = "lake"
"""`kind` of a column in a lake; its `type` is Spark's."""
CLIENT: Final = "client"
"""`kind` of a column in a database that makes no texts by itself: a client does. Its `type` is the one that a lake would have, but
for days, microseconds and JSON."""
REAL: Final = "encode(float4send(({0})::real), 'hex')"
DOUBLE: Final = "encode(float8send(({0})::double precision), 'hex')"
ARRAY: Final = "to_jsonb({0})::text"
_FIRST, _LAST = "0001-01-01", "9999-12-31 23:59:59.999999"
_THERE: Final = "CASE WHEN ({{0}}) IS NOT NULL THEN %s END"
"""GREATEST and LEAST take no notice of a null."""
DATE: Final = (_THERE % "least(greatest(({{0}})::date, '{0}'::date), '9999-12-31'::date)::text").format(_FIRST)
TIMESTAMP: Final = (_THERE % "least(greatest(({{0}})::timestamp, '{0}'::timestamp), '{1}'::timestamp)::text").format(
    _FIRST, _LAST
)
ZONED: Final = (
    _THERE % "least(greatest(({{0}})::timestamptz AT TIME ZONE 'UTC', '{0}'::timestamp), '{1}'::timestamp)::text"
).format(_FIRST, _LAST)
NUMERIC: Final = "trim_scale(nullif(({0})::numeric, 'NaN'))::text"
Text = Callable[[Any], str]


def pair(source: VerifiedColumn, target: VerifiedColumn, modes: SourceModes) -> TextPair | str:
    """Returns what `canonical_text.pair` returns, for a lake: the target's text is the name of one of `TEXTS`."""
    none = f"no common text of {source.declared or source.type} and {target.declared or target.type}"
    held = target.type.partition("(")[0]
    if target.kind == CLIENT and (source.element or (source.type, held) in _CLIENT_PAIRS):
        return _of_client(source, held, modes) or none
    if source.element:
        is_list = held.startswith("array<") and source.element in canonical_text.JSON_ELEMENTS
        return TextPair(ARRAY, "json") if is_list else none
    if source.type in canonical_text.COMPOSED or source.kind == "c" or source.type in ("hstore", "point", "timetz"):
        return none
    if source.type == "interval" and modes.interval == "string":
        return none
    if source.type == "bytea" and held == "string":
        found = canonical_text.encoded(modes.binary)
        return TextPair(found.source, "plain")
    if source.type == "varbit" and held == "string" and modes.varbit == "text":
        return TextPair(canonical_text.PLAIN, "plain")
    by_type = _PAIRS.get((source.type, held))
    if by_type is not None:
        return TextPair(canonical_text.rounded(by_type.source, source.type, modes), by_type.target)
    return (
        TextPair(canonical_text.PLAIN, "plain")
        if held == "string" and source.type not in canonical_text.FORMS
        else none
    )


def _pairs() -> dict[tuple[str, str], TextPair]:
    out = {
        ("bool", "boolean"): TextPair(canonical_text.BOOLEAN, "boolean"),
        ("bytea", "binary"): TextPair(canonical_text.BYTES, "bytes"),
    }
    out |= {
        (name, kind): TextPair(canonical_text.INTEGER, "plain")
        for name in canonical_text.INTEGERS
        for kind in ("int", "bigint", "string")
    }
    out |= {
        (name, kind): TextPair(NUMERIC, "numeric")
        for name in ("numeric", "money")
        for kind in ("decimal", "bigint", "int")
    }
    out |= {(name, "string"): TextPair(canonical_text.NUMERIC, "numeric") for name in ("numeric", "money")}
    out |= {(name, "decimal"): TextPair(canonical_text.NUMERIC, "numeric") for name in canonical_text.INTEGERS}
    out |= {("float4", "float"): TextPair(REAL, "real"), ("float4", "double"): TextPair(REAL, "real")}
    out |= {("float8", "double"): TextPair(DOUBLE, "double")}
    out |= {(name, "double"): TextPair(DOUBLE, "double") for name in ("numeric", *canonical_text.INTEGERS)}
    out |= {("date", "date"): TextPair(DATE, "date"), ("timestamp", "timestamp_ntz"): TextPair(TIMESTAMP, "timestamp")}
    out |= {
        ("timestamptz", "timestamp"): TextPair(ZONED, "timestamp"),
        ("time", "string"): TextPair(canonical_text.TIME, "time"),
    }
    out |= {
        (name, "string"): TextPair(canonical_text.PLAIN, "plain") for name in ("json", "jsonb", *canonical_text.TEXTS)
    }
    out |= {
        ("bpchar", "string"): TextPair(canonical_text.PLAIN, "padded"),
        ("interval", "string"): TextPair(canonical_text.DURATION, "duration"),
    }
    # The text of a single address, as it is sent, has no netmask.
    out |= {("inet", "string"): TextPair("CASE WHEN ({0}) IS NOT NULL THEN concat({0}) END", "plain")}
    out |= {(name, "boolean"): TextPair(canonical_text.BIT, "boolean") for name in ("bit", "varbit")}
    out |= {(name, "string"): TextPair(canonical_text.BITS, "bits") for name in ("bit", "varbit")}
    return out


def _of_client(source: VerifiedColumn, held: str, modes: SourceModes) -> TextPair | None:
    """Such a database has no array, no infinite number, and one type of times for those with a zone and those without one."""
    if source.element:
        fits = held in ("json", "string") and source.element in canonical_text.JSON_ELEMENTS
        return TextPair(ARRAY, "array") if fits else None
    if source.type == "interval" and modes.interval == "string":
        return None
    found = _CLIENT_PAIRS[source.type, held]
    return TextPair(canonical_text.rounded(found.source, source.type, modes), found.target)


_FINITE: Final = "CASE WHEN ({0})::float8 NOT IN ('NaN', 'Infinity', '-Infinity') THEN %s END"
_ENDLESS: Final = "WHEN {0} > '0' THEN '9223372036854775807' WHEN {0} < '0' THEN '-9223372036854775808' END"
_CLIENT_PAIRS: Final[Mapping[tuple[str, str], TextPair]] = {
    ("float4", "double"): TextPair(_FINITE % REAL, "real"),
    ("float8", "double"): TextPair(_FINITE % DOUBLE, "double"),
    ("date", "day"): TextPair(DATE, "date"),
    ("timestamp", "timestamp_ntz"): TextPair(TIMESTAMP, "timestamp"),
    ("timestamptz", "timestamp_ntz"): TextPair(ZONED, "timestamp"),
    ("interval", "bigint"): TextPair(canonical_text.DURATION.replace("ELSE ({0})::text END", _ENDLESS), "plain"),
}
_PAIRS: Final[Mapping[tuple[str, str], TextPair]] = _pairs()


def _numeric(value: Any) -> str:
    found = Decimal(value)
    if not found.is_finite():
        return "NaN" if found.is_nan() else "Infinity" if found > 0 else "-Infinity"
    text = format(found, "f")
    if "." in text:
        text = text.rstrip("0").removesuffix(".")
    return "0" if text in ("-0", "") else text


def _real(value: float) -> str:
    return "7fc00000" if math.isnan(value) else struct.pack(">f", value).hex()


def _double(value: float) -> str:
    return "7ff8000000000000" if math.isnan(value) else struct.pack(">d", float(value)).hex()


def _timestamp(value: dt.datetime) -> str:
    text = f"{value.year:04d}-{value.month:02d}-{value.day:02d} {value.hour:02d}:{value.minute:02d}:{value.second:02d}"
    return text + (f".{value.microsecond:06d}".rstrip("0") if value.microsecond else "")


def _time(value: str) -> str:
    return value.rstrip("0").removesuffix(".") if "." in value else value


TEXTS: Final[Mapping[str, Text]] = {
    "plain": str,
    "boolean": lambda value: "true" if value else "false",
    "bytes": lambda value: bytes(value).hex(),
    "numeric": _numeric,
    "real": _real,
    "double": _double,
    "date": lambda value: f"{value.year:04d}-{value.month:02d}-{value.day:02d}",
    "timestamp": _timestamp,
    "time": _time,
    "padded": lambda value: str(value).rstrip(" "),
    "duration": lambda value: str(value).removesuffix(" microseconds"),
    "bits": lambda value: str(value).lstrip("0"),
    "json": lambda value: json.dumps(value, ensure_ascii=False),
    "array": lambda value: json.dumps(json.loads(value), ensure_ascii=False),
}


def joined(parts: Sequence[str | None]) -> bytes:
    """Returns the texts of a row joined as `canonical_text.joined` joins them in SQL."""
    return "".join("~" if part is None else f"{len(part)}:{part}" for part in parts).encode()
