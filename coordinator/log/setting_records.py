"""Settings that every worker follows: their records stay as they were written, and are checked when they are folded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from cdcworker.coordinator.log.record_fields import UNREADABLE, members, text, wall_ms
from cdcworker.coordinator.model import JsonObject

LOGGER_LEVEL: Final = "logger/"
"""What keys of cluster-wide log levels begin with."""
COMPARISON: Final = "verify/"
"""What keys of comparisons begin with, one for each sink: the comparison that runs, or the last one."""
Parsed = TypeVar("Parsed")


@dataclass(frozen=True, slots=True)
class LoggerLevel:
    """The level that a logger was given, and when."""

    level: str
    modified_ms: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """What workers decide by in the record of a comparison."""

    id: str
    incarnation: str
    source: str
    state: str
    started_ms: int
    ended_ms: int


def logger_level(value: JsonObject) -> LoggerLevel:
    """Parses the value of a `logger/<name>` record. Raises one of `UNREADABLE` for a malformed one."""
    return LoggerLevel(text(value["level"]), wall_ms(value.get("ts", 0)))


def comparison(value: JsonObject) -> Comparison:
    """Parses the value of a `verify/<sink>` record. Raises one of `UNREADABLE` for a malformed one."""
    for name in ("progress", "result", "error"):
        if value.get(name) is not None:
            members(value[name])
    return Comparison(
        id=text(value.get("id", "")),
        incarnation=text(value["incarnation"]),
        source=text(value.get("source", "")),
        state=text(value["state"]),
        started_ms=wall_ms(value.get("started") or 0),
        ended_ms=wall_ms(value.get("ended") or 0),
    )


CHECKS: Final[Mapping[str, Callable[[JsonObject], object]]] = {
    LOGGER_LEVEL.rstrip("/"): logger_level,
    COMPARISON.rstrip("/"): comparison,
}
"""By the first part of a key, the parser of a setting."""


def readable(parser: Callable[[Any], Parsed], value: JsonObject | None) -> Parsed | None:
    """Returns the parsed value of a setting; None for one that is missing or malformed, which the fold has counted."""
    if value is None:
        return None
    try:
        return parser(value)
    except UNREADABLE:
        return None
