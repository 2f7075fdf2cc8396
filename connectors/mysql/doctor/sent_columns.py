"""Columns of records as a comparison knows them: the type of their values, and what makes of a value one that has a text."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from typing import Any, Final

Convert = Callable[[Any], Any]
_EPOCH: Final = dt.datetime(1970, 1, 1)
_DAY: Final = _EPOCH.toordinal()
_TIME: Final = "io.debezium.time."
_DATA: Final = "io.debezium.data."
_CONNECT: Final = "org.apache.kafka.connect.data."
_PLAIN: Final[Mapping[str, str]] = {
    **dict.fromkeys(("int", "long"), "integer"),
    **{name: name for name in ("boolean", "float", "double", "bytes")},
    "string": "text",
}
"""By the Avro type the type of what has no meaning besides."""


def _same(value: Any) -> Any:
    return value


def _date(days: int) -> dt.date:
    return dt.date.fromordinal(_DAY + days)


def _moment(numerator: int, denominator: int, value: int) -> dt.datetime:
    return _EPOCH + dt.timedelta(microseconds=value * numerator // denominator)


def _micros(numerator: int, denominator: int, value: int) -> int:
    return value * numerator // denominator


def _iso_moment(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text.removesuffix("Z"))


def _iso_date(text: str) -> dt.date:
    return dt.date.fromisoformat(text.removesuffix("Z"))


def _iso_micros(text: str) -> int:
    hours, minutes, seconds = text.removesuffix("Z").lstrip("-").split(":")
    whole, _, fraction = seconds.partition(".")
    micros = ((int(hours) * 60 + int(minutes)) * 60 + int(whole)) * 1_000_000 + int(fraction.ljust(6, "0"))
    return -micros if text.startswith("-") else micros


def _little_endian(value: bytes) -> int:
    return int.from_bytes(value, "little")


def _decimal(scale: int, value: bytes) -> Decimal:
    unscaled = int.from_bytes(value, "big", signed=True)
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


_MILLIS, _MICROS, _NANOS = (1000, 1), (1, 1), (1, 1000)
_MEANINGS: Final[Mapping[str, tuple[str, Convert]]] = {
    **dict.fromkeys((_TIME + "Date", _CONNECT + "Date"), ("date", _date)),
    _TIME + "Timestamp": ("timestamp", partial(_moment, *_MILLIS)),
    _CONNECT + "Timestamp": ("timestamp", partial(_moment, *_MILLIS)),
    _TIME + "MicroTimestamp": ("timestamp", partial(_moment, *_MICROS)),
    _TIME + "NanoTimestamp": ("timestamp", partial(_moment, *_NANOS)),
    _TIME + "ZonedTimestamp": ("zoned", _iso_moment),
    _TIME + "IsoTimestamp": ("timestamp", _iso_moment),
    _TIME + "IsoDate": ("date", _iso_date),
    _TIME + "IsoTime": ("time", _iso_micros),
    _TIME + "MicroTime": ("span", partial(_micros, *_MICROS)),
    _TIME + "NanoTime": ("time", partial(_micros, *_NANOS)),
    _CONNECT + "Time": ("time", partial(_micros, *_MILLIS)),
    _DATA + "Bits": ("bits", _little_endian),
    _DATA + "Json": ("json", _same),
    _DATA + "FloatVector": ("floats", _same),
    _DATA + "geometry.Point": ("point", _same),
    _DATA + "geometry.Geometry": ("geometry", _same),
}
"""By the name of Connect's meaning."""


def sent_type(avro: Any) -> tuple[str, Convert]:
    """Returns the type of a column's values, one of the words of `sent_texts`, and what makes of a value of a record one of it."""
    attributes: Mapping[str, Any] = avro if isinstance(avro, dict) else {}
    meaning = str(attributes.get("connect.name", ""))
    if meaning == _CONNECT + "Decimal":
        return "decimal", partial(_decimal, int(attributes["scale"]))
    if meaning in _MEANINGS:
        return _MEANINGS[meaning]
    base = attributes.get("type", avro)
    return _PLAIN.get(str(base), "unsent"), _same
