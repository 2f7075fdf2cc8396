"""Parses JSON that somebody else wrote: size and depth are bounded before it is parsed, and what is no JSON is refused."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, NoReturn

DEPTH_MAX = 64
"""Levels of arrays and objects. What this software writes has fewer than ten."""
DECIMAL_CHARS_MAX = 400
"""Digits of a number with a fraction, of which each counts: those of the largest double, and some."""
NUMBER_CHARS_MAX = 40
"""Digits of an integer: a number of 128 bits has 39."""
_TOKENS = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{\]}]', re.DOTALL)
"""A whole string, or one bracket. The possessive repetitions make the scan linear, also in text that is no JSON."""


class JsonRefused(ValueError):
    """The text is refused. The message says why and quotes nothing of it."""


@dataclass(frozen=True, slots=True)
class JsonLimits:
    """What a text may hold."""

    bytes_max: int
    depth_max: int = DEPTH_MAX


RECORD = JsonLimits(bytes_max=32 << 20)
"""A record of the cluster's topics: four times what their brokers accept."""
PROCESS: Final = JsonLimits(bytes_max=64 << 20, depth_max=256)
"""What a worker and its own processes say to each other. Rows of users are among it."""


def parse_json(data: bytes | str, limits: JsonLimits = RECORD, *, exact: bool = False) -> Any:
    """Returns the parsed text. Raises JsonRefused for text that is too long or too deep, is not UTF-8 or no JSON, names
    a member twice, or holds NaN, an infinite number or an integer of more than `NUMBER_CHARS_MAX` characters.

    Nothing is parsed before size and depth are known to be in bounds. With `exact` a number with a fraction or an exponent is
    a Decimal with the digits that it has.
    """
    if len(data) > limits.bytes_max:
        raise JsonRefused("too long")
    text = _decoded(data)
    require_depth(text, limits.depth_max)
    try:
        return (_EXACT_DECODER if exact else _DECODER).decode(text)
    except json.JSONDecodeError:
        raise JsonRefused("no JSON") from None
    except RecursionError:
        raise JsonRefused("nested too deeply") from None


def parse_object(data: bytes | str, limits: JsonLimits = RECORD) -> dict[str, Any]:
    """Returns the parsed object. Raises JsonRefused, also for JSON that is no object."""
    parsed = parse_json(data, limits)
    if not isinstance(parsed, dict):
        raise JsonRefused("no object")
    return parsed


def parse_message(data: bytes | str, limits: JsonLimits = PROCESS) -> dict[str, Any]:
    """Returns the object that another process of this worker has sent. Raises JsonRefused for text that is too long or
    too deep, or is no object. Numbers count as Python writes them, since rows of users hold any."""
    if len(data) > limits.bytes_max:
        raise JsonRefused("too long")
    text = _decoded(data)
    require_depth(text, limits.depth_max)
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        raise JsonRefused("no JSON") from None
    if not isinstance(parsed, dict):
        raise JsonRefused("no object")
    return parsed


def require_depth(text: str, depth_max: int = DEPTH_MAX) -> None:
    """Raises JsonRefused for text whose brackets are nested deeper, for whoever parses it by rules of his own."""
    if _is_deeper(text, depth_max):
        raise JsonRefused("nested too deeply")


def _decoded(data: bytes | str) -> str:
    if isinstance(data, str):
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise JsonRefused("not UTF-8") from None


def _is_deeper(text: str, depth_max: int) -> bool:
    """Tells whether brackets outside strings are nested deeper. Text with few brackets needs no scan."""
    if text.count("{") + text.count("[") <= depth_max:
        return False
    depth = 0
    for token in _TOKENS.finditer(text):
        first = text[token.start()]
        if first in "[{":
            depth += 1
            if depth > depth_max:
                return True
        elif first in "]}":
            depth -= 1
    return False


def _unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) != len(members):
        raise JsonRefused("a member is named twice")
    return found


def _whole(text: str) -> int:
    if len(text) > NUMBER_CHARS_MAX:
        raise JsonRefused("a number is too large")
    return int(text)


def _fraction(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise JsonRefused("a number is too large")
    return number


def _digits(text: str) -> Decimal:
    number = Decimal(text) if len(text) <= DECIMAL_CHARS_MAX else None
    if number is None or abs(number.adjusted()) > DECIMAL_CHARS_MAX:
        raise JsonRefused("a number is too large")
    return number


def _no_number(_: str) -> NoReturn:
    raise JsonRefused("no JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_whole, parse_float=_fraction, parse_constant=_no_number
)
_EXACT_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_whole, parse_float=_digits, parse_constant=_no_number
)
