"""PostgreSQL's text forms as values that every reader holds (`out.of.range.handling.mode=clamp`): what is out of the range
of its type becomes the nearest value that is not, and what is no number becomes null.

Readers turn numbers into dates and times of their own as the type says: Python's and most lakes' years are 1 to 9999, their days end
before 24:00, and their decimals are numbers. `text_values` has the exact forms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from cdcworker.connectors.capture.column_mapping import Parser
from cdcworker.connectors.postgres.types import text_values as exact
from cdcworker.connectors.postgres.types.text_values import DAY_US, civil_days
from cdcworker.schemas.placeholders import beyond_precision, unscaled

DAYS_MIN, DAYS_MAX = civil_days(1, 1, 1), civil_days(9999, 12, 31)
US_MIN, US_MAX = DAYS_MIN * DAY_US, (DAYS_MAX + 1) * DAY_US - 1
NS_MIN, NS_MAX = -(2**63) + 1, 2**63 - 2
"""Just before what stands for infinity."""
_MIDNIGHT: Final = b"24:00:00"
_LAST: Final = b"23:59:59.999999"
_INFINITE_DAYS: Final = {b"infinity": DAYS_MAX, b"-infinity": DAYS_MIN}
_INFINITE_MS: Final = {b"infinity": US_MAX // 1_000_000 * 1000, b"-infinity": US_MIN // 1000}
"""In whole seconds, which a timestamp of any precision holds."""
DIGITS_MAX = 38
"""The digits of the number that stands for infinity where there is no null: as many as a decimal of warehouses has."""
_NO_NUMBERS: Final = frozenset((b"NaN", b"Infinity", b"-Infinity"))


# -- dates and times --------------------------------------------------------------------------------------------------


def days(value: bytes) -> int:
    """A date of a type that is a date to readers."""
    return max(DAYS_MIN, min(DAYS_MAX, exact.days(value)))


def finite_days(value: bytes) -> int:
    """A date that is a plain number to readers: only the infinite ones are no dates."""
    infinite = _INFINITE_DAYS.get(value)
    return exact.days(value) if infinite is None else infinite


def _within_day(value: bytes) -> bytes:
    """Midnight at the end of a day as the last microsecond before it, with the zone behind it if there is one."""
    return _LAST + value[len(_MIDNIGHT) :] if value.startswith(_MIDNIGHT) else value


def time_us(value: bytes) -> int:
    return exact.time_us(_within_day(value))


def time_ms(value: bytes) -> int:
    return exact.time_ms(_within_day(value))


def time_ns(value: bytes) -> int:
    return exact.time_ns(_within_day(value))


def time_text(value: bytes) -> str:
    return exact.time_text(_within_day(value))


def timetz_text(value: bytes) -> str:
    return exact.timetz_text(_within_day(value))


def timestamp_us(value: bytes) -> int:
    return max(US_MIN, min(US_MAX, exact.any_timestamp_us(value)))


def timestamp_ms(value: bytes) -> int:
    return timestamp_us(value) // 1000


def finite_timestamp_ms(value: bytes) -> int:
    """A timestamp that is a plain number to readers: only the infinite ones are none."""
    infinite = _INFINITE_MS.get(value)
    return exact.timestamp_ms(value) if infinite is None else infinite


def timestamp_ns(value: bytes) -> int:
    infinite = exact.NANOS_INFINITY.get(value)
    return max(NS_MIN, min(NS_MAX, exact.any_timestamp_us(value) * 1000)) if infinite is None else infinite


# -- numbers ----------------------------------------------------------------------------------------------------------


def greatest(precision: int) -> bytes:
    """The largest unscaled number of so many digits."""
    return unscaled(10**precision - 1)


def decimal_bytes(precision: int, scale: int, *, required: bool) -> Parser:
    """numeric(p,s): `NaN`, which PostgreSQL sorts behind all numbers, is the largest number where null is not allowed."""
    parse = exact.decimal_bytes(scale)
    stand_in = greatest(precision) if required else None

    def bounded(value: bytes) -> bytes | None:
        return parse(value) or stand_in

    vars(bounded)["scale"] = scale
    return bounded


def variable_decimal(value: bytes) -> dict[str, Any] | None:
    """numeric without scale."""
    return None if value in _NO_NUMBERS else exact.variable_decimal(value)


def required_variable_decimal(value: bytes) -> dict[str, Any]:
    """The same where null is not allowed."""
    if value not in _NO_NUMBERS:
        return exact.variable_decimal(value)
    sign = -1 if value.startswith(b"-") else 1
    return {"scale": 0, "value": unscaled(sign * (10**DIGITS_MAX - 1))}


# -- values of the key, whose exact forms stand in the key alone -------------------------------------------------------

Bound = Callable[[Any], Any]
_DAY_MS: Final = DAY_US // 1000
_LAST_TEXT: Final = _LAST.decode()
_INFINITE_FORMS: Final = {exact.days(text): days for text, days in _INFINITE_DAYS.items()}
_INFINITE_MS_FORMS: Final = {exact.timestamp_ms(text): ms for text, ms in _INFINITE_MS.items()}


def _midnight(value: str) -> str:
    return _LAST_TEXT + value[len(_MIDNIGHT) :] if value.startswith(_MIDNIGHT.decode()) else value


def _between(least: int, most: int) -> Bound:
    return lambda value: max(least, min(most, value))


def _finite(precision: int, *, required: bool) -> Bound:
    """Of NaN in either form that it has in a key."""
    forms = (b"", beyond_precision(precision))
    stand_in = greatest(precision) if required else None
    return lambda value: stand_in if value in forms else value


def _number(value: dict[str, Any]) -> dict[str, Any]:
    if value["value"]:
        return value
    sign = -1 if value["scale"] < 0 else 1
    return {"scale": 0, "value": unscaled(sign * (10**DIGITS_MAX - 1))}


_BOUNDS: Final[dict[str, Bound]] = {
    "io.debezium.time.Date": lambda value: _INFINITE_FORMS.get(value, value),
    "io.debezium.time.Time": _between(0, _DAY_MS - 1),
    "io.debezium.time.Timestamp": lambda value: _INFINITE_MS_FORMS.get(value, value),
    "io.debezium.time.MicroTime": _between(0, DAY_US - 1),
    "io.debezium.time.NanoTime": _between(0, (DAY_US - 1) * 1000),
    "io.debezium.time.MicroTimestamp": _between(US_MIN, US_MAX),
    "io.debezium.time.IsoTime": _midnight,
    "io.debezium.time.ZonedTime": _midnight,
    "org.apache.kafka.connect.data.Date": _between(DAYS_MIN, DAYS_MAX),
    "org.apache.kafka.connect.data.Time": _between(0, _DAY_MS - 1),
    "org.apache.kafka.connect.data.Timestamp": _between(US_MIN // 1000, US_MAX // 1000),
}
"""By the type's name in Kafka Connect."""


def bound_of(kind: Any, *, required: bool = True) -> Bound | None:
    """Returns what makes of an exact value of a type the one that every reader holds; None where that is always the same."""
    if isinstance(kind, list):
        return bound_of(next(branch for branch in kind if branch != "null"), required="null" not in kind)
    if not isinstance(kind, dict):
        return None
    if kind["type"] == "array":
        return _each(bound_of(kind["items"]))
    name = str(kind.get("connect.name"))
    if name == "org.apache.kafka.connect.data.Decimal":
        return _finite(int(kind["precision"]), required=required)
    if name == "io.debezium.data.VariableScaleDecimal":
        return _number if required else lambda value: value if value["value"] else None
    if kind["type"] == "record":
        return _fields({field["name"]: bound_of(field["type"]) for field in kind["fields"]})
    return _BOUNDS.get(name)


def _each(bound: Bound | None) -> Bound | None:
    """Of the items of a list."""
    if bound is None:
        return None
    return lambda value: [None if item is None else bound(item) for item in value]


def _fields(bounds: Mapping[str, Bound | None]) -> Bound | None:
    """Of the fields of a record."""
    some = {name: bound for name, bound in bounds.items() if bound}

    def bounded(value: Mapping[str, Any]) -> dict[str, Any]:
        made = {name: bound(value[name]) for name, bound in some.items() if value[name] is not None}
        return {**value, **made}

    return bounded if some else None
