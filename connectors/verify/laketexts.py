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

from cdcworker.connectors.verify import texts
from cdcworker.connectors.verify.texts import Column, Modes, Pair

LAKE: Final = "lake"
"""`kind` of a column in a lake; its `type` is Spark's."""
REAL: Final = "encode(float4send(({0})::real), 'hex')"
DOUBLE: Final = "encode(float8send(({0})::double precision), 'hex')"
ARRAY: Final = "to_jsonb({0})::text"
_FIRST, _LAST = "0001-01-01", "9999-12-31 23:59:59.999999"
DATE: Final = f"least(greatest(({{0}})::date, '{_FIRST}'::date), '9999-12-31'::date)::text"
TIMESTAMP: Final = f"least(greatest(({{0}})::timestamp, '{_FIRST}'::timestamp), '{_LAST}'::timestamp)::text"
ZONED: Final = (
    f"least(greatest(({{0}})::timestamptz AT TIME ZONE 'UTC', '{_FIRST}'::timestamp), '{_LAST}'::timestamp)::text"
)
NUMERIC: Final = "trim_scale(nullif(({0})::numeric, 'NaN'))::text"
Text = Callable[[Any], str]


def pair(source: Column, target: Column, modes: Modes) -> Pair | str:
    """As `texts.pair`; the target's text is the name of one of `TEXTS`."""
    none = f"no common text of {source.declared or source.type} and {target.type}"
    held = target.type.partition("(")[0]
    if source.element:
        is_list = held.startswith("array<") and source.element in texts.JSON_ELEMENTS
        return Pair(ARRAY, "json") if is_list else none
    if source.type in texts.COMPOSED or source.kind == "c" or source.type in ("hstore", "point", "timetz"):
        return none
    if source.type == "interval" and modes.interval == "string":
        return none
    if source.type == "bytea" and held == "string":
        found = texts.encoded(modes.binary)
        return Pair(found.source, "plain")
    if source.type == "varbit" and held == "string" and modes.varbit == "text":
        return Pair(texts.PLAIN, "plain")
    by_type = _PAIRS.get((source.type, held))
    if by_type is not None:
        return Pair(texts.rounded(by_type.source, source.type, modes), by_type.target)
    return Pair(texts.PLAIN, "plain") if held == "string" and source.type not in texts.FORMS else none


def _pairs() -> dict[tuple[str, str], Pair]:
    out = {("bool", "boolean"): Pair(texts.BOOLEAN, "boolean"), ("bytea", "binary"): Pair(texts.BYTES, "bytes")}
    out |= {
        (name, kind): Pair(texts.INTEGER, "plain") for name in texts.INTEGERS for kind in ("int", "bigint", "string")
    }
    out |= {
        (name, kind): Pair(NUMERIC, "numeric") for name in ("numeric", "money") for kind in ("decimal", "bigint", "int")
    }
    out |= {(name, "string"): Pair(texts.NUMERIC, "numeric") for name in ("numeric", "money")}
    out |= {(name, "decimal"): Pair(texts.NUMERIC, "numeric") for name in texts.INTEGERS}
    out |= {("float4", "float"): Pair(REAL, "real"), ("float4", "double"): Pair(REAL, "real")}
    out |= {("float8", "double"): Pair(DOUBLE, "double")}
    out |= {(name, "double"): Pair(DOUBLE, "double") for name in ("numeric", *texts.INTEGERS)}
    out |= {("date", "date"): Pair(DATE, "date"), ("timestamp", "timestamp_ntz"): Pair(TIMESTAMP, "timestamp")}
    out |= {("timestamptz", "timestamp"): Pair(ZONED, "timestamp"), ("time", "string"): Pair(texts.TIME, "time")}
    out |= {(name, "string"): Pair(texts.PLAIN, "plain") for name in ("json", "jsonb", *texts.TEXTS)}
    out |= {("bpchar", "string"): Pair(texts.PLAIN, "padded"), ("interval", "string"): Pair(texts.DURATION, "duration")}
    out |= {(name, "boolean"): Pair(texts.BIT, "boolean") for name in ("bit", "varbit")}
    out |= {(name, "string"): Pair(texts.BITS, "bits") for name in ("bit", "varbit")}
    return out


_PAIRS: Final[Mapping[tuple[str, str], Pair]] = _pairs()


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
}


def joined(parts: Sequence[str | None]) -> bytes:
    """As `texts.joined` writes a row."""
    return "".join("~" if part is None else f"{len(part)}:{part}" for part in parts).encode()
