"""The fields of records, read strictly: a value of a wrong type or out of bounds makes its record unreadable."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cdcworker.coordinator.model import JsonObject

UNREADABLE = (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError)
"""The exceptions of parsing a malformed value: whoever can write to the log can write any JSON."""
TASKS_MAX = 1 << 20
"""No connector has so many tasks: loops run up to their numbers."""
NUMBER_MAX = (1 << 63) - 1
WALL_MS_MAX = 253_402_300_799_999
"""The end of the year 9999, beyond which no date can be shown."""
DELAY_MS_MAX = (1 << 31) - 1
NUMBER_DIGITS_MAX = 18


def text(value: Any) -> str:
    """Returns a text. Raises TypeError for anything else."""
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def whole(value: Any, least: int = 0, most: int = NUMBER_MAX) -> int:
    """Returns a whole number within bounds. Raises TypeError or ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("not a whole number")
    if not least <= value <= most:
        raise ValueError("out of bounds")
    return value


def wall_ms(value: Any) -> int:
    """Returns a time in milliseconds that can be shown as a date."""
    return whole(value, most=WALL_MS_MAX)


def task_number(value: Any) -> int:
    """Returns the number of a task."""
    return whole(value, most=TASKS_MAX)


def named_task(digits: str) -> int:
    """Returns the number of a task from the digits of a key."""
    if not (digits.isascii() and digits.isdigit() and len(digits) <= NUMBER_DIGITS_MAX):
        raise ValueError("not a number")
    return task_number(int(digits))


def flag(value: Any) -> bool:
    """Returns a truth value. Raises TypeError for anything else."""
    if not isinstance(value, bool):
        raise TypeError("neither true nor false")
    return value


def seconds(value: Any) -> float:
    """Returns a finite number that is not negative."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("not a number")
    if not (math.isfinite(value) and 0 <= value <= NUMBER_MAX):
        raise ValueError("out of bounds")
    return float(value)


def items(value: Any) -> list[Any] | tuple[Any, ...]:
    """Returns a list. Raises TypeError for anything else: a text has items, too."""
    if not isinstance(value, list | tuple):
        raise TypeError("not a list")
    return value


def members(value: Any) -> JsonObject:
    """Returns a copy of an object."""
    if not isinstance(value, Mapping):
        raise TypeError("not an object")
    return dict(value)


def texts(value: Any) -> dict[str, str]:
    """Returns an object whose members are texts."""
    return {name: text(item) for name, item in members(value).items()}
