"""Values of row images as records hold them: numbers since the epoch, ISO texts, unscaled decimals, bytes as text."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, Final

from cdcworker.connectors.mysql.types.declared import Geometry
from cdcworker.schemas.placeholders import unscaled

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE: Final = datetime(1970, 1, 1)
_DAY: Final = date(1970, 1, 1).toordinal()
_MICROSECOND: Final = timedelta(microseconds=1)
_DAY_MS_MAX: Final = 24 * 3600 * 1000 - 1
_POINT_BYTES: Final = 21
_EXACT: Final = Context(prec=100)
"""A decimal has up to 65 digits, more than arithmetic keeps by default."""


def signed64(number: int) -> int:
    """Returns the number with the same 64 bits as Java has it, which is negative from 2^63 on."""
    return number - (1 << 64) if number >= 1 << 63 else number


def unscaled_of(scale: int) -> Callable[[Any], bytes]:
    """Returns what makes of a number the bytes of a decimal of this scale."""

    def parse(value: int | Decimal) -> bytes:
        return unscaled(value if isinstance(value, int) else int(value.scaleb(scale, _EXACT)))

    return parse


def decimal_text(value: Decimal) -> str:
    return format(value, "f")


def little_endian(size: int) -> Callable[[int], bytes]:
    def parse(value: int) -> bytes:
        return value.to_bytes(size, "little")

    return parse


def bytes_as(mode: str) -> Callable[[bytes], str]:
    """Returns what writes bytes as text, in a form of `binary.handling.mode`."""
    if mode == "hex":
        return bytes.hex
    encode = base64.urlsafe_b64encode if mode == "base64-url-safe" else base64.b64encode

    def parse(value: bytes) -> str:
        return encode(value).decode()

    return parse


def geometry(value: Geometry) -> dict[str, Any]:
    return {"wkb": value.wkb, "srid": value.srid or None}


def point(value: Geometry) -> dict[str, Any]:
    """Returns a point with its coordinates; ValueError for a geometry that is none."""
    if len(value.wkb) != _POINT_BYTES:
        raise ValueError("a point of another length")
    order = "<" if value.wkb[0] else ">"
    x, y = struct.unpack_from(f"{order}dd", value.wkb, 5)
    return {"x": x, "y": y, "wkb": value.wkb, "srid": value.srid or None}


# -- dates and times --------------------------------------------------------------------------------------------------


def days(value: date) -> int:
    return value.toordinal() - _DAY


def epoch_us(value: datetime) -> int:
    return (value - _NAIVE) // _MICROSECOND


def epoch_ms(value: datetime) -> int:
    return epoch_us(value) // 1000


def epoch_ns(value: datetime) -> int:
    return epoch_us(value) * 1000


def iso_date(value: date) -> str:
    return value.isoformat() + "Z"


def iso_timestamp(value: datetime) -> str:
    return value.isoformat() + "Z"


def zoned_text(digits: int) -> Callable[[datetime], str]:
    """Returns what writes a time in UTC with so many digits of a fraction, as Debezium's ZonedTimestamp."""

    def parse(value: datetime) -> str:
        text = value.strftime(f"{value.year:04}-%m-%dT%H:%M:%S")
        return f"{text}.{value.microsecond:06}"[: len(text) + 1 + digits] + "Z" if digits else text + "Z"

    return parse


def span_us(value: timedelta) -> int:
    return value // _MICROSECOND


def span_ns(value: timedelta) -> int:
    return value // _MICROSECOND * 1000


def milliseconds_of_the_day(value: timedelta) -> int:
    return min(max(value // timedelta(milliseconds=1), 0), _DAY_MS_MAX)


def span_text(value: timedelta) -> str:
    """Returns `-838:59:59.000001Z`: hours may have three digits, and there may be a sign."""
    micros = abs(value) // _MICROSECOND
    seconds, micros = divmod(micros, 1_000_000)
    sign = "-" if value < timedelta() else ""
    text = f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{micros:06}Z" if micros else text + "Z"
