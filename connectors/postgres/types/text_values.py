"""PostgreSQL's text forms as Avro-native values; the session settings of `SESSION_OPTIONS` fix those forms.

Temporal values past what their type holds keep a form of their own: an infinite date is the largest or smallest
int32, an infinite timestamp Debezium's constant. A timestamp that does not fit its unit (microseconds end at 294247-01-10)
is refused.
"""

from __future__ import annotations

import base64
import re
from binascii import unhexlify
from collections.abc import Callable
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any, Final

from cdcworker.connectors.capture.column_mapping import Parser
from cdcworker.schemas.placeholders import unscaled

SESSION_OPTIONS: Final = {
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "xmloption": "content",
    "search_path": "pg_catalog",
    # A policy that hides rows must be an error: a snapshot of half a table looks like a whole one.
    "row_security": "off",
    # What we write is in the log for ourselves: a standby that is down, or our own walsender taken for one, must not be
    # waited for.
    "synchronous_commit": "local",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "lock_timeout": "0",
}

DATE_INFINITY = 2**31 - 1
DATE_MINUS_INFINITY = -(2**31)
# Debezium's constants for infinite timestamps.
TIMESTAMP_INFINITY_US = 9_223_372_036_825_200_000
TIMESTAMP_MINUS_INFINITY_US = -9_223_372_036_832_400_000
DURATION_INFINITY = 2**63 - 1
MONTH_US = 2_629_800_000_000
"""365.25 / 12 days."""
DAY_US = 86_400_000_000

text = bytes.decode
"""Parser of everything that stays text: bytes in the client encoding, always UTF-8."""


def boolean(value: bytes) -> bool:
    return value == b"t"


def hex_bytes(value: bytes) -> bytes:
    """`bytea` in hex form."""
    return unhexlify(value[2:])


vars(hex_bytes)["of_bytes"] = bytes


def hex_as(mode: str) -> Parser:
    """Parser of `bytea` for `binary.handling.mode`."""
    encode: dict[str, Callable[[bytes], bytes]] = {
        "base64": base64.b64encode,
        "base64-url-safe": base64.urlsafe_b64encode,
    }
    if mode == "hex":
        return lambda value: value[2:].decode()
    if mode == "bytes":
        return hex_bytes
    chosen = encode[mode]
    return lambda value: chosen(unhexlify(value[2:])).decode()


def bytes_as(mode: str) -> Parser:
    """Parser of a text form as opaque bytes."""
    parse = hex_as(mode)
    return lambda value: parse(b"\\x" + value.hex().encode())


# -- numbers ----------------------------------------------------------------------------------------------------------

ALL_DIGITS = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
"""Python's own context rounds to 28 digits."""


def decimal_bytes(scale: int, nan: bytes = b"") -> Parser:
    """numeric(p,s): the text always has exactly `scale` digits after the point. `nan` is written for NaN."""

    def parse(value: bytes) -> bytes:
        try:
            number = int(value.replace(b".", b""))
        except ValueError:
            return _special_decimal(value, nan)
        return number.to_bytes(((number if number >= 0 else ~number).bit_length() >> 3) + 1, "big", signed=True)

    def exact(value: bytes) -> bytes:
        point = value.find(b".")
        if (len(value) - point - 1 if point >= 0 else 0) == scale:
            return parse(value)
        number = Decimal(value.decode())
        return unscaled(int(number.scaleb(scale, ALL_DIGITS))) if number.is_finite() else nan

    chosen = exact if scale else parse
    vars(chosen)["scale"] = scale
    return chosen


def _special_decimal(value: bytes, nan: bytes) -> bytes:
    if value in (b"NaN", b"Infinity", b"-Infinity"):
        return nan
    raise ValueError("not a number")


_VARIABLE_SPECIAL = {b"NaN": 0, b"Infinity": 1, b"-Infinity": -1}


def variable_decimal(value: bytes) -> dict[str, Any]:
    """numeric without scale. Specials have no unscaled bytes; their scale says which: NaN 0, Infinity 1, -Infinity -1."""
    if value in _VARIABLE_SPECIAL:
        return {"scale": _VARIABLE_SPECIAL[value], "value": b""}
    point = value.find(b".")
    scale = len(value) - point - 1 if point >= 0 else 0
    return {"scale": scale, "value": unscaled(int(value.replace(b".", b"")))}


_DECIMAL_WORDS = {b"NaN": "NAN", b"Infinity": "POSITIVE_INFINITY", b"-Infinity": "NEGATIVE_INFINITY"}


def decimal_text(value: bytes) -> str:
    return _DECIMAL_WORDS.get(value) or value.decode()


def money_cents(value: bytes) -> int:
    """`-$1,234.50` (lc_monetary=C) as the number that the server stores: in the database's own smallest unit.

    How many of its digits are a fraction depends on the database's lc_monetary, which this session does not use.
    """
    return int(re.sub(rb"[^0-9\-]", b"", value))


def money_text(digits: int) -> Parser:
    def parse(value: bytes) -> str:
        return format(Decimal(money_cents(value)).scaleb(-digits), "f")

    return parse


def bits(length: int) -> Parser:
    """bit(n): little-endian bytes sized to n; varbit (`length` 0): sized to the content, as Debezium's Bits."""

    def parse(value: bytes) -> bytes:
        number = int(value, 2) if value else 0
        size = (length + 7) // 8 if length else (number.bit_length() + 7) // 8
        return number.to_bytes(size, "little")

    return parse


def bit_boolean(value: bytes) -> bool:
    return value == b"1"


# -- dates and times --------------------------------------------------------------------------------------------------

_DAYS_CACHED_MAX = 20_000
_days_cache: dict[bytes, int] = {}


def civil_days(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 in the proleptic Gregorian calendar; year 0 is 1 BC."""
    if month <= 2:
        year -= 1
        month += 12
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + day - 719469


def days(value: bytes) -> int:
    """`2024-02-29`, `10000-01-01`, `0044-03-15 BC`."""
    found = _days_cache.get(value)
    if found is not None:
        return found
    if value == b"infinity":
        return DATE_INFINITY
    if value == b"-infinity":
        return DATE_MINUS_INFINITY
    plain, bc = (value[:-3], True) if value.endswith(b" BC") else (value, False)
    year, month, day = plain.split(b"-")
    result = civil_days(1 - int(year) if bc else int(year), int(month), int(day))
    if len(_days_cache) >= _DAYS_CACHED_MAX:
        _days_cache.clear()
    _days_cache[value] = result
    return result


def time_us(value: bytes) -> int:
    """`04:05:06`, `04:05:06.789`, `24:00:00`."""
    us = (int(value[0:2]) * 3600 + int(value[3:5]) * 60 + int(value[6:8])) * 1_000_000
    return us + int(value[9:].ljust(6, b"0")) if len(value) > 8 else us


def time_ms(value: bytes) -> int:
    return time_us(value) // 1000


def time_ns(value: bytes) -> int:
    return time_us(value) * 1000


def timestamp_us(value: bytes) -> int:
    """`2024-02-29 12:34:56.789`, with years of any length and ` BC`."""
    if len(value) > 18 and value[10] == 32 and value[-1] != 67:
        us = (int(value[11:13]) * 3600 + int(value[14:16]) * 60 + int(value[17:19])) * 1_000_000
        if len(value) > 19:
            us += int(value[20:].ljust(6, b"0"))
        return days(value[:10]) * DAY_US + us
    us = _rare_timestamp_us(value)
    if us >= 2**63:
        raise ValueError("timestamp does not fit microseconds")
    return us


def any_timestamp_us(value: bytes) -> int:
    """Microseconds, also those that a long does not hold."""
    return timestamp_us(value) if value[10:11] == b" " else _rare_timestamp_us(value)


def _rare_timestamp_us(value: bytes) -> int:
    if value == b"infinity":
        return TIMESTAMP_INFINITY_US
    if value == b"-infinity":
        return TIMESTAMP_MINUS_INFINITY_US
    plain, bc = (value[:-3], b" BC") if value.endswith(b" BC") else (value, b"")
    date, time = plain.split(b" ")
    return days(date + bc) * DAY_US + time_us(time)


def timestamp_ms(value: bytes) -> int:
    """Milliseconds hold whatever the server has."""
    return any_timestamp_us(value) // 1000


NANOS_INFINITY = {b"infinity": 2**63 - 1, b"-infinity": -(2**63)}


def timestamp_ns(value: bytes) -> int:
    """Nanoseconds; what lies outside 1677–2262 does not fit a long and is refused, infinity is its largest number."""
    infinite = NANOS_INFINITY.get(value)
    if infinite is not None:
        return infinite
    ns = timestamp_us(value) * 1000
    if not -(2**63) < ns < 2**63 - 1:
        raise ValueError("timestamp does not fit nanoseconds")
    return ns


def timestamptz_text(value: bytes) -> str:
    """`2024-02-29 12:34:56.789+00` as `2024-02-29T12:34:56.789Z`; years past 9999 with a sign, as ISO 8601 wants it."""
    plain = value.decode()
    if plain[10:11] == " " and plain.endswith("+00"):
        return f"{plain[:10]}T{plain[11:-3]}Z"
    if plain in ("infinity", "-infinity"):
        return plain
    return _rare_iso(plain, "Z")


def padded_timestamptz(digits: int) -> Parser:
    """timestamptz as Debezium writes it: the fraction has as many digits as the column's precision, none of precision 0."""

    def parse(value: bytes) -> str:
        if len(value) == whole and value[10] == 32 and value[-3:] == b"+00":
            plain = value.decode()
            return f"{plain[:10]}T{plain[11:-3]}Z"
        plain = timestamptz_text(value)
        if plain[-1] != "Z":  # infinity
            return plain
        point = plain.rfind(".")
        if point < 0:
            return f"{plain[:-1]}.{'0' * digits}Z" if digits else plain
        return f"{plain[: point + 1]}{plain[point + 1 : -1]:0<{digits}.{digits}}Z" if digits else f"{plain[:point]}Z"

    whole = len("2024-02-29 12:34:56+00") + (digits + 1 if digits else 0)
    vars(parse)["fraction"] = digits
    return parse


def timestamp_text(value: bytes) -> str:
    plain = value.decode()
    if plain in ("infinity", "-infinity"):
        return plain
    return _rare_iso(plain, "Z")


def _rare_iso(plain: str, zone: str) -> str:
    bc = plain.endswith(" BC")
    date, time = plain.removesuffix(" BC").split(" ")
    year, month, day = date.split("-")
    number = 1 - int(year) if bc else int(year)
    sign = "-" if number < 0 else "+" if number > 9999 else ""
    return f"{sign}{abs(number):04d}-{month}-{day}T{time.removesuffix('+00')}{zone}"


def timestamptz_us(value: bytes) -> int:
    plain, bc = (value[:-3], b" BC") if value.endswith(b" BC") else (value, b"")
    return timestamp_us(plain.removesuffix(b"+00") + bc)


def date_text(value: bytes) -> str:
    """ISO 8601 with Debezium's zone mark: `2024-02-29Z`."""
    plain = value.decode()
    if plain in ("infinity", "-infinity"):
        return plain
    date, _, bc = plain.partition(" ")
    return _rare_iso(f"{date} 00:00:00 {bc}".rstrip(), "").removesuffix("T00:00:00") + "Z"


def time_text(value: bytes) -> str:
    return value.decode() + "Z"


def timetz_text(value: bytes) -> str:
    """`04:05:06.789-08` as `04:05:06.789-08:00`: the offset is kept, where Debezium converts to GMT and loses it."""
    plain = value.decode()
    at = max(plain.rfind("+"), plain.rfind("-"))
    time, zone = plain[:at], plain[at:]
    if zone in ("+00", "-00"):
        return time + "Z"
    return time + (zone if ":" in zone else zone + ":00")


_INTERVAL = re.compile(
    rb"(?:(-?\d+) years? ?)?(?:(-?\d+) mons? ?)?(?:([+-]?\d+) days? ?)?(?:([+-]?)(\d+):(\d\d):(\d\d)(?:\.(\d+))?)?"
)


def _interval_parts(value: bytes) -> tuple[int, int, int, int]:
    """Years, months, days, microseconds."""
    found = _INTERVAL.fullmatch(value)
    if not found:
        raise ValueError("not an interval")
    year, month, day, sign, hour, minute, second, fraction = found.groups()
    us = (int(hour or 0) * 3600 + int(minute or 0) * 60 + int(second or 0)) * 1_000_000
    us += int((fraction or b"0").ljust(6, b"0"))
    return int(year or 0), int(month or 0), int(day or 0), -us if sign == b"-" else us


def interval_us(value: bytes) -> int:
    """Debezium's MicroDuration: months count 365.25/12 days, so this form loses what the string form keeps."""
    if value == b"infinity":
        return DURATION_INFINITY
    if value == b"-infinity":
        return -DURATION_INFINITY - 1
    year, month, day, us = _interval_parts(value)
    # Beyond 292,000 years it ends just before infinity, as the form loses what months are anyway.
    return max(-DURATION_INFINITY, min(DURATION_INFINITY - 1, (year * 12 + month) * MONTH_US + day * DAY_US + us))


def interval_text(value: bytes) -> str:
    """`P1Y2M3DT4H5M6.78S`."""
    if value in (b"infinity", b"-infinity"):
        return value.decode()
    year, month, day, us = _interval_parts(value)
    sign, us = ("-", -us) if us < 0 else ("", us)
    second, micro = divmod(us, 1_000_000)
    minute, second = divmod(second, 60)
    hour, minute = divmod(minute, 60)
    part = f"{second}.{micro:06d}".rstrip("0").rstrip(".") if micro else str(second)

    def signed(number: int | str) -> str:
        return f"{sign}{number}" if sign and number not in (0, "0") else str(number)

    return f"P{year}Y{month}M{day}DT{signed(hour)}H{signed(minute)}M{signed(part)}S"
