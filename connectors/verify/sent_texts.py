"""The texts of values of a source whose database makes none: a client makes them of the values that records hold.

The type of such a column is one of `WORDS`, whatever the database calls it, and its text the name of one of `TEXTS`; the warehouse's
text is what its own kind makes of the value that it holds.
"""

from __future__ import annotations

import datetime as dt
import json
import struct
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, Final

from cdcworker.connectors.verify import canonical_text as sql
from cdcworker.connectors.verify import lake_texts
from cdcworker.connectors.verify.canonical_text import TextPair, VerifiedColumn

SENT: Final = "sent"
"""`kind` of a column whose texts are made of the values that records hold."""
UNSENT: Final = "unsent"
"""The type of a column of which records hold nothing."""
ORDERED: Final = frozenset(("integer", "decimal", "date", "timestamp", "bytes"))
"""Types whose keys are walked in order."""
ONE_TEXT: Final = frozenset(
    ("integer", "wrapped", "boolean", "text", "bytes", "date", "timestamp", "zoned", "time", "span")
)
"""Types of which equal values have one text."""
_TEXTS_SQL: Final = frozenset((*sql.TEXTS, "uuid"))
_INTS: Final = ("int2", "int4", "int8")
# Coordinates as bytes: no text of a number leaves anything out.
_POINT: Final = "encode(float8send(({0})[0]), 'hex') || encode(float8send(({0})[1]), 'hex')"
_FLOATS: Final = (
    "(SELECT string_agg(encode(float4send(v), 'hex'), ',' ORDER BY n) FROM unnest({0}) WITH ORDINALITY u (v, n))"
)


def _pairs() -> dict[tuple[str, str], TextPair]:
    """By the type of the value and that of a PostgreSQL warehouse's column."""
    out = {("boolean", "bool"): TextPair("boolean", sql.BOOLEAN), ("bytes", "bytea"): TextPair("bytes", sql.BYTES)}
    out |= {(word, kind): TextPair("integer", sql.INTEGER) for word in ("integer", "wrapped") for kind in _INTS}
    out |= {(word, "numeric"): TextPair("numeric", sql.NUMERIC) for word in ("integer", "wrapped", "decimal")}
    out |= {("decimal", kind): TextPair("numeric", sql.NUMERIC) for kind in _INTS}
    out |= {("float", kind): TextPair("real", lake_texts.REAL) for kind in ("float4", "float8")}
    out |= {("double", "float8"): TextPair("double", lake_texts.DOUBLE)}
    out |= {(word, kind): TextPair("plain", sql.PLAIN) for word in ("text", "json") for kind in _TEXTS_SQL}
    out |= {("json", kind): TextPair("jsonb", sql.JSON) for kind in ("json", "jsonb")}
    out |= {("bits", kind): TextPair("bits", sql.BITS) for kind in ("bit", "varbit")}
    out |= {("date", "date"): TextPair("date", sql.DATE), ("date", "timestamp"): TextPair("moment", sql.TIMESTAMP)}
    out |= {("timestamp", "timestamp"): TextPair("timestamp", sql.TIMESTAMP)}
    out |= {(word, "timestamptz"): TextPair("timestamp", sql.ZONED) for word in ("timestamp", "zoned")}
    out |= {("zoned", "timestamp"): TextPair("timestamp", sql.TIMESTAMP), ("time", "time"): TextPair("time", sql.TIME)}
    out |= {("span", "interval"): TextPair("micros", sql.DURATION), ("span", "time"): TextPair("time", sql.TIME)}
    return out | {("point", "point"): TextPair("point", _POINT)}


def _lake_pairs() -> dict[tuple[str, str], TextPair]:
    """By the type of the value and what a lake, or a client of a database, calls that of its column."""
    out = {("boolean", "boolean"): TextPair("boolean", "boolean"), ("bytes", "binary"): TextPair("bytes", "bytes")}
    for word in ("integer", "wrapped"):
        out |= {(word, held): TextPair("integer", "plain") for held in ("int", "bigint", "string")}
        out |= {(word, "decimal"): TextPair("numeric", "numeric")}
    out |= {("decimal", held): TextPair("numeric", "numeric") for held in ("decimal", "int", "bigint", "string")}
    out |= {("float", held): TextPair("real", "real") for held in ("float", "double")}
    out |= {("double", "double"): TextPair("double", "double")}
    out |= {(word, "string"): TextPair("plain", "plain") for word in ("text", "json")}
    out |= {("bits", "string"): TextPair("bits", "bits"), ("time", "string"): TextPair("time", "time")}
    out |= {("span", "string"): TextPair("micros", "duration"), ("span", "bigint"): TextPair("micros", "plain")}
    out |= {("date", held): TextPair("date", "date") for held in ("date", "day")}
    out |= {("timestamp", "timestamp_ntz"): TextPair("timestamp", "timestamp")}
    return out | {("zoned", held): TextPair("timestamp", "timestamp") for held in ("timestamp", "timestamp_ntz")}


_PAIRS: Final[Mapping[tuple[str, str], TextPair]] = _pairs()
_LAKE_PAIRS: Final[Mapping[tuple[str, str], TextPair]] = _lake_pairs()
WORDS: Final = frozenset(word for word, _ in (*_PAIRS, *_LAKE_PAIRS)) | {"floats", "geometry", UNSENT}


def pair(source: VerifiedColumn, target: VerifiedColumn) -> TextPair | str:
    """Returns the texts that both can be brought into, or why there are none."""
    if target.kind in (lake_texts.LAKE, lake_texts.CLIENT):
        found = _LAKE_PAIRS.get((source.type, target.type.partition("(")[0]))
    elif target.element:
        is_vector = source.type == "floats" and target.element == "float4"
        found = TextPair("floats", _FLOATS) if is_vector else None
    else:
        found = _PAIRS.get((source.type, target.type))
    return found or f"no common text of {source.declared or source.type} and {target.declared or target.type}"


# -- texts ------------------------------------------------------------------------------------------------------------


def _time(micros: int) -> str:
    seconds, micro = divmod(micros, 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{micro:06d}".rstrip("0") if micro else text


def micros_of(text: str) -> int:
    """Returns the microseconds of which `time` is the text. Raises ValueError."""
    hours, minutes, seconds = text.split(":")
    whole, _, fraction = seconds.partition(".")
    return ((int(hours) * 60 + int(minutes)) * 60 + int(whole)) * 1_000_000 + int(fraction.ljust(6, "0"))


def _point(value: Mapping[str, Any]) -> str:
    return struct.pack(">d", value["x"]).hex() + struct.pack(">d", value["y"]).hex()


def _floats(values: Iterable[float]) -> str | None:
    return ",".join(map(lake_texts.TEXTS["real"], values)) or None


def _moment(value: dt.date) -> str:
    return lake_texts.TEXTS["timestamp"](dt.datetime(value.year, value.month, value.day))


def _bits(value: int) -> str:
    return f"{value:b}" if value else ""


Text = Callable[[Any], str | None]
TEXTS: Final[Mapping[str, Text]] = {
    **{name: lake_texts.TEXTS[name] for name in ("boolean", "bytes", "real", "double", "date", "timestamp", "plain")},
    **dict.fromkeys(("integer", "micros"), str),
    "numeric": lake_texts.TEXTS["numeric"],
    "bits": _bits,
    "jsonb": lambda value: jsonb_text(value),
    "moment": _moment,
    "time": _time,
    "point": _point,
    "floats": _floats,
}
"""Of booleans, whole numbers, decimals, floats, texts, bytes, the number of bits, dates, datetimes without a zone, microseconds, points
and lists of floats."""


# -- JSON as PostgreSQL writes it --------------------------------------------------------------------------------------


def jsonb_text(text: str) -> str:
    """Returns a JSON text as jsonb prints it: keys sorted, each once, numbers as they are, and no escape that is not needed. Raises
    ValueError for a text that is none."""
    found = json.loads(text, parse_float=_Number, parse_int=_Number, parse_constant=_refuse)
    return "".join(_jsonb(found))


class _Number(str):
    """A number by its digits: jsonb keeps the zeros after its point."""

    __slots__ = ()


def _refuse(name: str) -> Any:
    raise ValueError(name)


def _jsonb(value: Any) -> Iterable[str]:
    if isinstance(value, _Number):
        yield _number(value)
    elif isinstance(value, str):
        yield _quoted(value)
    elif isinstance(value, list):
        yield from _listed("[", "]", ([*_jsonb(item)] for item in value))
    elif isinstance(value, dict):
        # Shorter keys come first.
        keys = sorted(value, key=lambda key: (len(key.encode()), key.encode()))
        yield from _listed("{", "}", ([_quoted(key), ": ", *_jsonb(value[key])] for key in keys))
    else:
        yield {None: "null", True: "true", False: "false"}[value]


def _listed(begin: str, end: str, items: Iterable[list[str]]) -> Iterable[str]:
    yield begin
    for number, item in enumerate(items):
        if number:
            yield ", "
        yield from item
    yield end


def _number(text: str) -> str:
    value = Decimal(text)
    plain = format(value, "f")
    # There is no negative zero among exact numbers.
    return plain.removeprefix("-") if not value else plain


def _quoted(text: str) -> str:
    """Control characters beyond the usual ones, and nothing else, are escaped by their numbers."""
    return json.dumps(text, ensure_ascii=False)
