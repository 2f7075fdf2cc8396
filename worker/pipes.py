"""What comes through a task's pipes: lines, messages, log levels, and how much of it is taken."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Mapping
from typing import Any, Final, get_args

from cdcworker.coordinator.events import TaskReport, TaskTopics
from cdcworker.coordinator.model import AssignedTask, JsonObject, TaskState

LINE_BYTES_MAX: Final = 1_048_576
LOG_LINE_BYTES_MAX: Final = 65_536
REPORT_BYTES_MAX: Final = 65_536
ERROR_TEXT_MAX: Final = 4_096
POSITION_PARTS_MAX: Final = 16
POSITION_CHARS_MAX: Final = 100
_LEVEL: Final = re.compile(r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b", re.IGNORECASE)
_STATES: Final[Mapping[object, TaskState]] = {s: s for s in get_args(TaskState) if s != "UNASSIGNED"}


class Lines:
    """Splits a byte stream into lines; a line that never ends is cut, so that a task cannot fill the worker."""

    def __init__(self, bytes_max: int = LINE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
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
        rest = b"".join(self._parts)
        self._parts, self._size = [], 0
        return [rest] if rest else []


def message_of(line: bytes) -> JsonObject | None:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def event_of(task: AssignedTask, message: JsonObject) -> TaskReport | TaskTopics | None:
    """The event that a task's message means; None for one that is not understood."""
    kind = message.get("type")
    if kind == "status" and (state := _STATES.get(str(message.get("state")))):
        error = message.get("error")
        return TaskReport(task, state, short_error(error) if isinstance(error, dict) else None)
    if kind == "metrics":
        metrics = {name: value for name, value in message.items() if name != "type"}
        return TaskReport(task, metrics=metrics) if _fits(metrics) else None
    if kind == "topics" and isinstance(message.get("topics"), list):
        return TaskTopics(task, tuple(str(name) for name in message["topics"])) if _fits(message) else None
    return None


def position_of(metrics: Mapping[str, Any]) -> JsonObject | None:
    """Of a source what it has committed, of a sink the offsets that it has applied: a few plain values."""
    found = metrics.get("position") or metrics.get("offsets")
    if not isinstance(found, dict):
        return None
    plain = {str(name): value for name, value in found.items() if isinstance(value, int) or _is_word(value)}
    return dict(list(plain.items())[:POSITION_PARTS_MAX]) or None


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= POSITION_CHARS_MAX


def short_error(error: JsonObject) -> JsonObject:
    """The error, or what can be kept of it: a report that no log can store would never be read by anybody."""
    if _fits(error):
        return error
    kept = {name: str(error[name])[:ERROR_TEXT_MAX] for name in ("code", "kind", "message", "hint") if error.get(name)}
    return {name: text.encode(errors="replace").decode() for name, text in kept.items()}


def _fits(value: JsonObject) -> bool:
    """It is of a size that travels with every report, and text that UTF-8 can carry to whoever reads it."""
    try:
        return len(json.dumps(value, ensure_ascii=False).encode()) <= REPORT_BYTES_MAX
    except (UnicodeEncodeError, RecursionError):
        return False


def level_of(line: str) -> int | None:
    """The level that a task's log line names near its start."""
    found = _LEVEL.search(line[:80])
    return logging.getLevelNamesMapping()[found.group(1).upper()] if found else None


def lease_message(valid_s: float, *, takes_turns: bool = False) -> JsonObject:
    """How long the task may go on producing without hearing from us again: from now, by the clock of this machine.
    `takes_turns`: every worker that may own it next fences both of its data producers, so it may write with both."""
    valid_s = max(0.0, valid_s)
    until = time.monotonic() + valid_s
    return {"type": "lease", "valid_s": round(valid_s, 3), "until": until, "takes_turns": takes_turns}


class Budget:
    """So many units a second, and `burst` at once."""

    def __init__(self, per_s: float, burst: float, now: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._left = burst
        self._at = now

    def take(self, units: float, now: float) -> bool:
        """Whether there were that many; otherwise none is taken."""
        self._refill(now)
        if self._left < units:
            return False
        self._left -= units
        return True

    def spend(self, units: float, now: float) -> float:
        """Take them in any case; returns for how long nothing more should be taken."""
        self._refill(now)
        self._left -= units
        return max(0.0, -self._left / self._per_s)

    def _refill(self, now: float) -> None:
        self._left = min(self._burst, self._left + (now - self._at) * self._per_s)
        self._at = now
