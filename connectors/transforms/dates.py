"""Java's SimpleDateFormat in UTC, for moments as milliseconds since 1970.

Dates follow the Gregorian calendar throughout; Java counts those before October 1582 by the Julian one. Names are English.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, NamedTuple

from cdcworker.connectors.transforms.data import DAY_MS

LETTERS: Final = "GyMLdkHmsSEuDFwWahKzZYX"
_UNPARSED: Final = "wWYF"
"""Letters that are written, and not read: they name weeks."""
MONTHS: Final = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
DAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ZONE: Final = re.compile(r"([+-])(\d{1,2}):?(\d{2})?")
_DIGITS_MAX: Final = 18
"""Digits of a number that is read: more are no part of a moment."""


def to_millis(moment: datetime) -> int:
    """Returns a moment in milliseconds since 1970; one without a zone is in UTC."""
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)


def to_moment(millis: int) -> datetime:
    """Returns the moment in UTC. Raises OverflowError beyond Python's years."""
    return _EPOCH + timedelta(milliseconds=millis)


def civil(days: int) -> tuple[int, int, int]:
    """Returns year, month and day of a day since 1970, of any year."""
    shifted = days + 719_468
    era, of_era = divmod(shifted, 146_097)
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    return year + era * 400 + (month >= 10), month + 3 - 12 * (month >= 10), day


def day_number(year: int, month: int, day: int) -> int:
    """Returns the day since 1970. Months and days beyond their range count on, as Java's lenient calendar does."""
    year += (month - 1) // 12
    month = (month - 1) % 12 + 1
    shifted = year - (month <= 2)
    era, of_era = divmod(shifted, 400)
    of_year = (153 * (month - 3 + 12 * (month <= 2)) + 2) // 5
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year + day - 1 - 719_468


class _Moment(NamedTuple):
    year: int
    month: int
    day: int
    weekday: int
    """0 is Sunday."""
    of_year: int
    """From 1."""
    millis: int
    """Of the day."""
    hour: int
    minute: int
    second: int
    milli: int

    @classmethod
    def of(cls, millis: int) -> _Moment:
        days, rest = divmod(millis, DAY_MS)
        seconds, milli = divmod(rest, 1000)
        minutes, second = divmod(seconds, 60)
        hour, minute = divmod(minutes, 60)
        return cls(*_day(days), rest, hour, minute, second, milli)


@lru_cache(maxsize=4096)
def _day(days: int) -> tuple[int, int, int, int, int]:
    """Returns what a moment tells of its day. Moments of a table are of few days as a rule."""
    year, month, day = civil(days)
    return year, month, day, (days + 4) % 7, days - day_number(year, 1, 1) + 1


@dataclass(frozen=True, slots=True)
class Part:
    """A run of one letter, or text between such runs (`letter` is then empty)."""

    letter: str
    count: int
    text: str = ""


def parts_of(pattern: str) -> Sequence[Part]:
    """Returns the parts of a pattern. Raises ValueError with Java's text."""
    parts: list[Part] = []
    for found in re.finditer(r"'((?:[^']|'')*)'|([A-Za-z])\2*|'|[^A-Za-z']+", pattern):
        text, letter = found[0], found[2]
        if text == "'":
            raise ValueError("Unterminated quote")
        if letter is None:
            quoted = found[1]
            literal = text if quoted is None else quoted.replace("''", "'") or "'"
            parts.append(Part("", 0, literal))
        elif letter not in LETTERS:
            raise ValueError(f"Illegal pattern character '{letter}'")
        elif letter == "X" and len(text) > 3:
            raise ValueError(f"invalid ISO 8601 format: length={len(text)}")
        else:
            parts.append(Part(letter, len(text)))
    return parts


# Writing


def _year(m: _Moment, count: int) -> str:
    return _short_year(m.year if m.year > 0 else 1 - m.year, count)


def _short_year(year: int, count: int) -> str:
    return f"{year % 100:02d}" if count == 2 else f"{year:0{count}d}"


def _month(m: _Moment, count: int) -> str:
    name = MONTHS[m.month - 1]
    return name if count >= 4 else name[:3] if count == 3 else f"{m.month:0{count}d}"


def _weekday(m: _Moment, count: int) -> str:
    return DAYS[m.weekday] if count >= 4 else DAYS[m.weekday][:3]


def _week(m: _Moment) -> tuple[int, int]:
    """Returns the year and the number of a week that begins on Sunday, of which the first has the 1st of January."""
    length = day_number(m.year + 1, 1, 1) - day_number(m.year, 1, 1)
    if m.of_year + 6 - m.weekday > length:
        return m.year + 1, 1
    first = (m.weekday - m.of_year + 1) % 7
    return m.year, (m.of_year - 1 + first) // 7 + 1


_NUMBERS: Final[dict[str, Callable[[_Moment], int]]] = {
    "d": lambda m: m.day,
    "H": lambda m: m.hour,
    "k": lambda m: m.hour or 24,
    "K": lambda m: m.hour % 12,
    "h": lambda m: m.hour % 12 or 12,
    "m": lambda m: m.minute,
    "s": lambda m: m.second,
    "S": lambda m: m.milli,
    "u": lambda m: m.weekday or 7,
    "D": lambda m: m.of_year,
    "F": lambda m: (m.day - 1) // 7 + 1,
    "w": lambda m: _week(m)[1],
    "W": lambda m: (m.day - 1 + (m.weekday - m.day + 1) % 7) // 7 + 1,
}
_TEXTS: Final[dict[str, Callable[[_Moment, int], str]]] = {
    "G": lambda m, _: "AD" if m.year > 0 else "BC",
    "y": _year,
    "Y": lambda m, count: _short_year(_week(m)[0], count),
    "M": _month,
    "L": _month,
    "E": _weekday,
    "a": lambda m, _: "PM" if m.millis >= DAY_MS // 2 else "AM",
    "z": lambda _, count: "Coordinated Universal Time" if count >= 4 else "UTC",
    "Z": lambda *_: "+0000",
    "X": lambda *_: "Z",
}


# Reading


@dataclass(slots=True)
class _Found:
    """What has been read of a text so far."""

    year: int = 1970
    month: int = 1
    day: int = 1
    of_year: int | None = None
    hour: int = 0
    minute: int = 0
    second: int = 0
    milli: int = 0
    is_afternoon: bool = False
    half_hour: int | None = None
    is_before_christ: bool = False
    zone_minutes: int = 0

    def millis(self) -> int:
        year = 1 - self.year if self.is_before_christ else self.year
        days = day_number(year, self.month, self.day)
        if self.of_year is not None:
            days = day_number(year, 1, 1) + self.of_year - 1
        hour = self.hour if self.half_hour is None else self.half_hour + 12 * self.is_afternoon
        minutes = hour * 60 + self.minute - self.zone_minutes
        return days * DAY_MS + minutes * 60_000 + self.second * 1000 + self.milli


_NUMERIC: Final = {"d": "day", "D": "of_year", "H": "hour", "m": "minute", "s": "second", "S": "milli"}


class SimpleDateFormat:
    """A compiled pattern. Raises ValueError for a pattern that Java refuses."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._parts = parts_of(pattern)
        self._writers = tuple(map(_writer, self._parts))
        self._template = _template(self._parts)
        year = time.gmtime().tm_year - 80
        self._century, self._first = year // 100 * 100, year % 100

    def format(self, millis: int) -> str:
        """Returns the text of a moment."""
        moment = _Moment.of(millis)
        if self._template is not None and moment.year > 0:
            text, fields = self._template
            written: str = text % fields(moment)
            return written
        return "".join([write(moment) for write in self._writers])

    def parse(self, text: str) -> int:
        """Returns the moment that a text begins with; what follows it does not count. Raises ValueError."""
        found, at = _Found(), 0
        for number, part in enumerate(self._parts):
            if not part.letter:
                if not text.startswith(part.text, at):
                    raise ValueError("the text is another one")
                at += len(part.text)
                continue
            follower = self._parts[number + 1] if number + 1 < len(self._parts) else None
            width = part.count if follower is not None and follower.letter else 0
            while text[at : at + 1] in (" ", "\t") and at < len(text):
                at += 1
            at = self._read(part, text, at, width, found)
        return found.millis()

    def _read(self, part: Part, text: str, at: int, width: int, found: _Found) -> int:
        """Reads one part into `found`, and returns where the next one begins. `width`: as many digits, if not 0."""
        letter = part.letter
        if letter in _UNPARSED:
            raise ValueError("weeks are not read")
        if letter in "ML" and part.count >= 3:
            found.month, at = _named(MONTHS, text, at)
            found.month += 1
            return at
        if letter == "E":
            return _named(DAYS, text, at)[1]
        if letter in "Ga":
            chosen, at = _named(("AD", "BC") if letter == "G" else ("AM", "PM"), text, at)
            if letter == "G":
                found.is_before_christ = chosen == 1
            else:
                found.is_afternoon = chosen == 1
            return at
        if letter in "zZX":
            found.zone_minutes, at = _zone(letter, text, at)
            return at
        value, end = _number(text, at, width)
        self._set(part, value, end - at, found)
        return end

    def _set(self, part: Part, value: int, digits: int, found: _Found) -> None:
        letter = part.letter
        if letter == "y":
            if part.count <= 2 and digits == 2 and value >= 0:
                value += self._century + (0 if value >= self._first else 100)
            found.year = value
        elif letter in "ML":
            found.month = value
        elif letter == "k":
            found.hour = 0 if value == 24 else value
        elif letter in "hK":
            found.half_hour = 0 if letter == "h" and value == 12 else value
        elif letter in _NUMERIC:
            setattr(found, _NUMERIC[letter], value)


_PLAIN: Final = {
    "y": "year",
    "M": "month",
    "L": "month",
    "d": "day",
    "H": "hour",
    "m": "minute",
    "s": "second",
    "S": "milli",
}
"""Fields of a moment whose number a letter writes as it is: a year with other than two letters, a month with at most two."""


def _template(parts: Sequence[Part]) -> tuple[str, Callable[[_Moment], Any]] | None:
    """Returns a text with places for numbers, and what takes them from a moment after the year 0: a fast way for patterns of
    nothing else. None: the pattern has other parts."""
    text, fields = "", []
    for part in parts:
        if not part.letter or part.letter in "zZX":
            text += (part.text if not part.letter else _TEXTS[part.letter](_Moment.of(0), part.count)).replace(
                "%", "%%"
            )
            continue
        limits = {"y": part.count != 2, "M": part.count <= 2, "L": part.count <= 2}
        if part.letter not in _PLAIN or not limits.get(part.letter, True):
            return None
        text += f"%0{part.count}d"
        fields.append(_Moment._fields.index(_PLAIN[part.letter]))
    return (text, itemgetter(*fields)) if fields else None


def _writer(part: Part) -> Callable[[_Moment], str]:
    """Returns what writes a part of a pattern."""
    text, count = part.text, part.count
    if not part.letter:
        return lambda _: text
    number = _NUMBERS.get(part.letter)
    if number is not None:
        return lambda moment: f"{number(moment):0{count}d}"
    shown = _TEXTS[part.letter]
    return lambda moment: shown(moment, count)


def _number(text: str, at: int, width: int) -> tuple[int, int]:
    end = at + 1 if text[at : at + 1] == "-" else at
    limit = at + width if width else len(text)
    if limit > len(text):
        raise ValueError("the text ends too early")
    limit = min(limit, end + _DIGITS_MAX)
    while end < limit and text[end] in "0123456789":
        end += 1
    return int(text[at:end]), end


def _named(names: Sequence[str], text: str, at: int) -> tuple[int, int]:
    """Returns the number of the longest name that stands in a text, or of its first three letters, and where it ends."""
    rest = text[at : at + 20].lower()
    for length in (20, 3):
        for number, name in enumerate(names):
            shown = name.lower()[:length]
            if rest.startswith(shown):
                return number, at + len(shown)
    raise ValueError("no such name")


def _zone(letter: str, text: str, at: int) -> tuple[int, int]:
    """Returns the minutes east of UTC, and where they end."""
    for name in ("UTC", "GMT", "Z"):
        if text.startswith(name, at) and (name == "Z") == (letter == "X"):
            at += len(name)
            if name != "GMT" or text[at : at + 1] not in ("+", "-"):
                return 0, at
            break
    match = _ZONE.match(text, at)
    if match is None:
        raise ValueError("no such time zone")
    minutes = int(match[2]) * 60 + int(match[3] or 0)
    return (-minutes if match[1] == "-" else minutes), match.end()


@lru_cache(maxsize=128)
def date_format(pattern: str) -> SimpleDateFormat:
    """Returns a compiled pattern. Raises ValueError with Java's text for what is none."""
    return SimpleDateFormat(pattern)


ISO_DATE: Final = "yyyy-MM-dd"
ISO_TIME: Final = "HH:mm:ss.SSS'Z'"
ISO_TIMESTAMP: Final = "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"


def iso_text(millis: int) -> str:
    """Returns a moment as Kafka Connect writes one whose type is not known: before the end of the first day a time, at
    midnight a date, and else both."""
    pattern = ISO_TIME if millis < DAY_MS else ISO_DATE if millis % DAY_MS == 0 else ISO_TIMESTAMP
    return date_format(pattern).format(millis)
