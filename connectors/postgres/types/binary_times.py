"""Dates, times and intervals: the binary forms as text with DateStyle=ISO, TimeZone=UTC, IntervalStyle=postgres."""

from __future__ import annotations

import struct
from typing import Final

_DAY_US: Final = 86_400_000_000
_EPOCH_DAYS: Final = 730_425
"""2000-01-01 in days since 0000-03-01 of the proleptic Gregorian calendar."""
_ERA_DAYS: Final = 146_097
_INFINITE: Final = {-(2**31): b"-infinity", 2**31 - 1: b"infinity", -(2**63): b"-infinity", 2**63 - 1: b"infinity"}


def _civil(days: int) -> tuple[int, int, int]:
    """Year (0 is 1 BC), month and day of a number of days since 2000-01-01."""
    era, of_era = divmod(days + _EPOCH_DAYS, _ERA_DAYS)
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // (_ERA_DAYS - 1)) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    return year + 400 * era + (month >= 10), month + 3 if month < 10 else month - 9, day


def _date_parts(days: int) -> tuple[str, str]:
    """The date, and what stands behind everything for one before Christ."""
    year, month, day = _civil(days)
    return f"{year if year > 0 else 1 - year:04d}-{month:02d}-{day:02d}", "" if year > 0 else " BC"


def _clock(us: int) -> str:
    second, fraction = divmod(us, 1_000_000)
    text = f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
    return f"{text}.{fraction:06d}".rstrip("0") if fraction else text


def date(value: bytes) -> bytes:
    (days,) = struct.unpack(">i", value)
    return _INFINITE.get(days) or "".join(_date_parts(days)).encode()


def time(value: bytes) -> bytes:
    return _clock(struct.unpack(">q", value)[0]).encode()


def timetz(value: bytes) -> bytes:
    us, west = struct.unpack(">qi", value)
    minute, second = divmod(abs(west), 60)
    hour, minute = divmod(minute, 60)
    zone = f"{'-' if west > 0 else '+'}{hour:02d}"
    if minute or second:
        zone += f":{minute:02d}" + (f":{second:02d}" if second else "")
    return (_clock(us) + zone).encode()


def _timestamp(zone: str, value: bytes) -> bytes:
    (us,) = struct.unpack(">q", value)
    if us in _INFINITE:
        return _INFINITE[us]
    days, rest = divmod(us, _DAY_US)
    date, bc = _date_parts(days)
    return f"{date} {_clock(rest)}{zone}{bc}".encode()


def timestamp(value: bytes) -> bytes:
    return _timestamp("", value)


def timestamptz(value: bytes) -> bytes:
    return _timestamp("+00", value)


def interval(value: bytes) -> bytes:
    us, days, months = struct.unpack(">qii", value)
    if (us, days, months) == (2**63 - 1, 2**31 - 1, 2**31 - 1):
        return b"infinity"
    if (us, days, months) == (-(2**63), -(2**31), -(2**31)):
        return b"-infinity"
    sign = -1 if months < 0 else 1
    years, months = sign * (abs(months) // 12), sign * (abs(months) % 12)
    text, negative = "", False
    for number, unit in ((years, "year"), (months, "mon"), (days, "day")):
        if number:
            # Behind a negative part a positive one shows its sign.
            shown = f"{'+' if negative and number > 0 else ''}{number} {unit}{'' if number == 1 else 's'}"
            text, negative = f"{text} {shown}".lstrip(), number < 0
    if us or not text:
        clock = ("-" if us < 0 else "+" if negative else "") + _clock(abs(us))
        text = f"{text} {clock}".lstrip()
    return text.encode()
