"""What the source sends for a value out of its type's range, as SQL: with `out.of.range.handling.mode=clamp` the nearest value that
readers hold, or null, is what the warehouse has to have. Where it has the exact value, of before, that is equal too."""

from __future__ import annotations

import re
from typing import Final

from cdcworker.connectors.verify.canonical_text import SourceModes, TextPair, VerifiedColumn

FIRST: Final = "0001-01-01"
LAST: Final = "9999-12-31"
_LAST_SECOND: Final = f"{LAST} 23:59:59"
_LAST_MOMENT: Final = f"{LAST} 23:59:59.999999"
_NANOS: Final = ("1677-09-21 00:12:43.145224", "2262-04-11 23:47:16.854775")
_GREATEST: Final = "9" * 38
_MILLIS_DIGITS: Final = 3
_DIGITS: Final = re.compile(r"\((\d+)(?:,(-?\d+))?\)")


def bounded(
    pair: TextPair, source: VerifiedColumn, target: VerifiedColumn, modes: SourceModes, *, required: bool
) -> TextPair:
    """Returns the pair with texts made of what the source sends."""
    if modes.out_of_range == "exact":
        return pair
    value = _array(source, modes) if source.element else _value(source, modes, required=required)
    if value is None:
        return pair
    alike = (source.type, source.element) == (target.type, target.element) and source.kind == target.kind
    text = pair.source.replace("{0}", value)
    if alike:
        return TextPair(text, pair.target.replace("{0}", value))
    # The nearest value that there is would be one for a null, too.
    return TextPair(f"CASE WHEN ({{0}}) IS NOT NULL THEN {text} END", pair.target)


def _digits(declared: str) -> tuple[int, int] | None:
    """The numbers in a declared type: precision and scale."""
    found = _DIGITS.search(declared)
    return (int(found[1]), int(found[2] or 0)) if found else None


def _value(source: VerifiedColumn, modes: SourceModes, *, required: bool) -> str | None:
    digits = _digits(source.declared)
    if source.type == "numeric" and modes.decimal == "precise":
        return _number(digits, required=required)
    if source.type == "date" and modes.time != "isostring":
        return _date(modes)
    if source.type == "timestamp" and modes.time != "isostring":
        return _timestamp(digits, modes)
    if source.type == "time":
        size = "" if digits is None else f"({digits[0]})"
        return f"least(({{0}})::time, '{_last_of_day(digits, modes)}'::time)::time{size}"
    if source.type == "timetz":
        return "regexp_replace(({0})::text, '^24:00:00', '23:59:59.999999')::timetz"
    return None


def _number(digits: tuple[int, int] | None, *, required: bool) -> str:
    most = "null"
    if required and digits is not None and 0 <= digits[1] <= digits[0]:
        most = f"{'9' * digits[0]} * 10::numeric ^ -{digits[1]}"
    elif required:
        most = f"case ({{0}})::text when '-Infinity' then -{_GREATEST} else {_GREATEST} end"
    return f"(case when ({{0}})::text in ('NaN', 'Infinity', '-Infinity') then {most} else ({{0}})::numeric end)"


def _date(modes: SourceModes) -> str:
    if modes.time == "connect":
        return f"least(greatest(({{0}})::date, '{FIRST}'::date), '{LAST}'::date)"
    return (
        f"(case ({{0}})::date when 'infinity' then '{LAST}'::date when '-infinity' then '{FIRST}'::date"
        " else ({0})::date end)"
    )


def _is_plain(digits: tuple[int, int] | None, modes: SourceModes) -> bool:
    """Tells whether timestamps are milliseconds without a logical type, which hold whatever the server has but for infinity."""
    return modes.time.startswith("adaptive") and digits is not None and digits[0] <= _MILLIS_DIGITS


def _timestamp(digits: tuple[int, int] | None, modes: SourceModes) -> str:
    if _is_plain(digits, modes):
        return (
            f"(case ({{0}})::timestamp when 'infinity' then '{_LAST_SECOND}'::timestamp"
            f" when '-infinity' then '{FIRST}'::timestamp else ({{0}})::timestamp end)"
        )
    size = "" if digits is None else f"({digits[0]})"
    low, high = _NANOS if modes.time == "nanoseconds" else (FIRST, _LAST_MOMENT)
    nearest = f"least(greatest(({{0}})::timestamp, '{low}'::timestamp), '{high}'::timestamp)::timestamp{size}"
    if modes.time == "nanoseconds":
        return f"(case when isfinite({{0}}) then {nearest} else ({{0}})::timestamp end)"
    return nearest


def _last_of_day(digits: tuple[int, int] | None, modes: SourceModes) -> str:
    millis = modes.time == "adaptive" and digits is not None and digits[0] <= _MILLIS_DIGITS
    return "23:59:59.999" if millis or modes.time == "connect" else "23:59:59.999999"


def _array(source: VerifiedColumn, modes: SourceModes) -> str | None:
    """The elements are replaced in the array's text, which keeps its dimensions."""
    digits = _digits(source.declared)
    if source.element == "numeric" and modes.decimal == "precise":
        steps = [("NaN|-?Infinity", "NULL")]
    elif source.element == "date" and modes.time != "isostring":
        far = modes.time == "connect"
        steps = [
            ("-infinity" + r'|"?\d+-\d\d-\d\d BC"?' * far, FIRST),
            ("infinity" + r"|\d\d\d\d\d+-\d\d-\d\d" * far, LAST),
        ]
    elif source.element == "timestamp" and modes.time in ("adaptive", "adaptive_time_microseconds", "microseconds"):
        plain = _is_plain(digits, modes)
        steps = [
            ("-infinity" + r'|"\d+-\d\d-\d\d [0-9:.]+ BC"' * (not plain), f'"{FIRST} 00:00:00"'),
            ("infinity" + r'|"\d\d\d\d\d+-[^"]+"' * (not plain), f'"{_LAST_SECOND if plain else _LAST_MOMENT}"'),
        ]
    elif source.element in ("time", "timetz"):
        steps = [("24:00:00", _last_of_day(digits, modes))]
    else:
        return None
    text = "({0})::text"
    for pattern, to in steps:
        text = f"regexp_replace({text}, '{pattern}', '{to}', 'g')"
    return f"({text})::{source.declared or source.element + '[]'}"
