"""Messages between a worker and its tasks: lines, reports, log levels, leases, and the rates at which output is read."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Mapping
from typing import Any, Final, get_args

from cdcworker.coordinator.core.events import TaskReport, TaskTopics
from cdcworker.coordinator.model import AssignedTask, JsonObject, TaskState
from cdcworker.schemas.untrusted.json_text import JsonLimits, JsonRefused, parse_message

LINE_BYTES_MAX: Final = 1_048_576
LOG_LINE_BYTES_MAX: Final = 65_536
REPORT_BYTES_MAX: Final = 65_536
MESSAGE: Final = JsonLimits(bytes_max=2 * LINE_BYTES_MAX)
"""A line is cut where it grows longer than `LINE_BYTES_MAX`, and may be so much longer then."""
ERROR_TEXT_MAX: Final = 4_096
POSITION_PARTS_MAX: Final = 16
POSITION_CHARS_MAX: Final = 100
_LEVEL: Final = re.compile(r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b", re.IGNORECASE)
_STATES: Final[Mapping[object, TaskState]] = {s: s for s in get_args(TaskState) if s != "UNASSIGNED"}


class LineSplitter:
    """Splits a byte stream into lines. A line that grows too long is cut, so that a task cannot fill the worker's
    memory."""

    def __init__(self, bytes_max: int = LINE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the lines that are complete with this data."""
        first, *rest = data.split(b"\n")
        self._parts.append(first)
        self._size += len(first)
        lines = []
        if rest:
            lines = [b"".join(self._parts), *rest[:-1]]
            self._parts, self._size = [rest[-1]], len(rest[-1])
        if self._size > self._bytes_max:
            lines.append(b"".join(self._parts))
            self._parts, self._size = [], 0
        return lines

    def close(self) -> list[bytes]:
        """Returns the rest that has no end of line."""
        rest = b"".join(self._parts)
        self._parts, self._size = [], 0
        return [rest] if rest else []


def message_of(line: bytes) -> JsonObject | None:
    """Returns the JSON object of a line, None for any other line."""
    try:
        return parse_message(line, MESSAGE)
    except JsonRefused:
        return None


def event_of(task: AssignedTask, message: JsonObject) -> TaskReport | TaskTopics | None:
    """Returns the event for a task's message, None for a message that this version does not know."""
    kind = message.get("type")
    if kind == "status" and (state := _STATES.get(str(message.get("state")))):
        error = message.get("error")
        return TaskReport(task, state, short_error(error) if isinstance(error, dict) else None)
    if kind == "metrics":
        metrics = {name: value for name, value in message.items() if name != "type"}
        return TaskReport(task, metrics=metrics) if fits(metrics) else None
    if kind == "topics" and isinstance(message.get("topics"), list):
        return TaskTopics(task, tuple(str(name) for name in message["topics"])) if fits(message) else None
    return None


def position_of(metrics: Mapping[str, Any]) -> JsonObject | None:
    """Returns the position that a source has committed, or the offsets that a sink has applied, cut to a few plain
    values."""
    position = metrics.get("position") or metrics.get("offsets")
    if not isinstance(position, dict):
        return None
    plain = {str(name): value for name, value in position.items() if isinstance(value, int) or _is_word(value)}
    return dict(list(plain.items())[:POSITION_PARTS_MAX]) or None


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= POSITION_CHARS_MAX


def short_error(error: JsonObject) -> JsonObject:
    """Returns the error, shortened if it is too large: a report that no log can store would never be read."""
    if fits(error):
        return error
    texts = {name: str(error[name])[:ERROR_TEXT_MAX] for name in ("code", "kind", "message", "hint") if error.get(name)}
    return {name: text.encode(errors="replace").decode() for name, text in texts.items()}


def fits(value: JsonObject) -> bool:
    """Returns whether the value is small enough to travel with every report and can be encoded in UTF-8."""
    try:
        return len(json.dumps(value, ensure_ascii=False).encode()) <= REPORT_BYTES_MAX
    except (UnicodeEncodeError, RecursionError):
        return False


def level_of(line: str) -> int | None:
    """Returns the log level that a task's log line names near its start, None for a line without one."""
    match = _LEVEL.search(line[:80])
    return logging.getLevelNamesMapping()[match.group(1).upper()] if match else None


def lease_message(valid_s: float, *, may_alternate: bool = False) -> JsonObject:
    """Returns the message that allows a task to write for `valid_s` seconds from now, by this machine's clock.

    `may_alternate`: every worker that may own the task next fences both of its data producers, so that it may alternate
    between them.
    """
    valid_s = max(0.0, valid_s)
    until = time.monotonic() + valid_s
    return {"type": "lease", "valid_s": round(valid_s, 3), "until": until, "takes_turns": may_alternate}


class RateBudget:
    """A token bucket: `per_s` units a second, and `burst` at once."""

    def __init__(self, per_s: float, burst: float, now: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._left = burst
        self._at = now

    def take(self, units: float, now: float) -> bool:
        """Takes the units if there are enough; returns whether it did."""
        self._refill(now)
        if self._left < units:
            return False
        self._left -= units
        return True

    def spend(self, units: float, now: float) -> float:
        """Takes the units in any case; returns the seconds for which no more should be taken."""
        self._refill(now)
        self._left -= units
        return max(0.0, -self._left / self._per_s)

    def _refill(self, now: float) -> None:
        self._left = min(self._burst, self._left + (now - self._at) * self._per_s)
        self._at = now
