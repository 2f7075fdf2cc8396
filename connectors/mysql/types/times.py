"""Dates and times of row images. What Python's types cannot hold, zero dates among it, has a form of its own."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Final, NamedTuple

from cdcworker.connectors.mysql.errors import MalformedError
from cdcworker.connectors.mysql.types.numbers import ValueReader

FRACTION_DIGITS_MAX: Final = 6
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_HOURS_MAX: Final = 838


class InvalidDate(NamedTuple):
    """A date that is none: the zero date, a part that is zero, or a day that its month does not have."""

    year: int
    month: int
    day: int

    def __str__(self) -> str:
        return f"{self.year:04}-{self.month:02}-{self.day:02}"


class InvalidDateTime(NamedTuple):
    """A date and time whose date is none. The zero timestamp is one with all parts zero."""

    date: InvalidDate
    hour: int
    minute: int
    second: int
    microsecond: int

    def __str__(self) -> str:
        text = f"{self.date} {self.hour:02}:{self.minute:02}:{self.second:02}"
        return f"{text}.{self.microsecond:06}" if self.microsecond else text


ZERO_TIMESTAMP: Final = InvalidDateTime(InvalidDate(0, 0, 0), 0, 0, 0, 0)


def day(data: bytes, at: int) -> tuple[date | InvalidDate, int]:
    packed = int.from_bytes(data[at : at + 3], "little")
    return _date(packed >> 9, packed >> 5 & 15, packed & 31), at + 3


def datetime2(digits: int) -> ValueReader:
    """Returns the reader of a DATETIME with so many digits of a fraction."""
    size, factor = fraction(digits)

    def read(data: bytes, at: int) -> tuple[datetime | InvalidDateTime, int]:
        middle, end = at + 5, at + 5 + size
        packed = int.from_bytes(data[at:middle], "big") - (1 << 39)
        if packed < 0:
            raise MalformedError("a DATETIME before year 0")
        days, time = packed >> 17, packed & 0x1FFFF
        year, month = divmod(days >> 5, 13)
        parts = (year, month, days & 31, time >> 12, time >> 6 & 63, time & 63)
        return _datetime(parts, int.from_bytes(data[middle:end], "big") * factor), end

    return read


def timestamp2(digits: int) -> ValueReader:
    """Returns the reader of a TIMESTAMP with so many digits of a fraction; its value is in UTC."""
    size, factor = fraction(digits)

    def read(data: bytes, at: int) -> tuple[datetime | InvalidDateTime, int]:
        middle, end = at + 4, at + 4 + size
        seconds = int.from_bytes(data[at:middle], "big")
        micros = int.from_bytes(data[middle:end], "big") * factor
        if not seconds and not micros:
            return ZERO_TIMESTAMP, end
        if micros >= 1_000_000:
            raise MalformedError("a fraction of a second or more")
        return _EPOCH + timedelta(0, seconds, micros), end

    return read


def time2(digits: int) -> ValueReader:
    """Returns the reader of a TIME with so many digits of a fraction."""
    size, factor = fraction(digits)
    zero = 0x800000 << 8 * size
    mask = (1 << 8 * size) - 1

    def read(data: bytes, at: int) -> tuple[timedelta, int]:
        end = at + 3 + size
        packed = int.from_bytes(data[at:end], "big") - zero
        value = _span(abs(packed) >> 8 * size, (abs(packed) & mask) * factor)
        return (-value if packed < 0 else value), end

    return read


def timestamp(data: bytes, at: int) -> tuple[datetime | InvalidDateTime, int]:
    """Reads a TIMESTAMP of a table from before fractions of seconds."""
    seconds = int.from_bytes(data[at : at + 4], "little")
    return (_EPOCH + timedelta(0, seconds) if seconds else ZERO_TIMESTAMP), at + 4


def datetime1(data: bytes, at: int) -> tuple[datetime | InvalidDateTime, int]:
    """Reads a DATETIME of a table from before fractions of seconds: the decimal digits of its parts."""
    packed = int.from_bytes(data[at : at + 8], "little")
    days, time = divmod(packed, 1_000_000)
    parts = (days // 10_000, days // 100 % 100, days % 100, time // 10_000, time // 100 % 100, time % 100)
    return _datetime(parts, 0), at + 8


def time1(data: bytes, at: int) -> tuple[timedelta, int]:
    """Reads a TIME of a table from before fractions of seconds."""
    packed = int.from_bytes(data[at : at + 3], "little", signed=True)
    number = abs(packed)
    value = _span((number // 10_000) << 12 | (number // 100 % 100) << 6 | number % 100, 0)
    return (-value if packed < 0 else value), at + 3


def fraction(digits: int) -> tuple[int, int]:
    """Returns the bytes of a fraction, and the microseconds that one unit of it is."""
    if digits > FRACTION_DIGITS_MAX:
        raise MalformedError("more digits of a fraction than a type has")
    size = (digits + 1) // 2
    return size, 10 ** (6 - 2 * size)


def _span(time: int, micros: int) -> timedelta:
    hours, minutes, seconds = time >> 12, time >> 6 & 63, time & 63
    if hours > _HOURS_MAX or minutes > 59 or seconds > 59 or micros >= 1_000_000:
        raise MalformedError("a TIME outside its range")
    return timedelta(0, hours * 3600 + minutes * 60 + seconds, micros)


def _date(year: int, month: int, day: int) -> date | InvalidDate:
    if year > 9999 or month > 12:
        raise MalformedError("a date outside its range")
    try:
        return date(year, month, day)
    except ValueError:
        return InvalidDate(year, month, day)


def _datetime(parts: tuple[int, ...], micros: int) -> datetime | InvalidDateTime:
    year, month, day_, hour, minute, second = parts
    if hour > 23 or minute > 59 or second > 59 or micros >= 1_000_000:
        raise MalformedError("a time of day outside its range")
    found = _date(year, month, day_)
    if isinstance(found, InvalidDate):
        return InvalidDateTime(found, hour, minute, second, micros)
    return datetime(year, month, day_, hour, minute, second, micros)
