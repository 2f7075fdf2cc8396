"""Numbers of a task that its worker keeps over the task's processes."""

from __future__ import annotations

from typing import Any, Final

from cdcworker.schemas.change import JsonObject

RETRYING: Final = "retrying"
"""Failed tries in a row, `{"code", "count", "since_ms"}`, or null once one succeeded."""
FAILURES: Final = "failures"
"""How often a process of the task failed on this worker, by the class of its error."""
HELD: Final = "tables_held"
"""How many tables stand still while the task's others go on: quarantined by a source, paused by a sink."""
NUMBERS_MAX: Final = 200
"""Of one task, as its reports carry them all; one that names ever new ones keeps those of its last message."""


def joined(before: JsonObject, said: JsonObject) -> JsonObject:
    """A process that goes on where another one gave up has tried since that one began to."""
    out = {**before, **said}
    if len(out) > NUMBERS_MAX:
        out = {**said, **{name: before[name] for name in (FAILURES,) if name in before}}
    since = [part[RETRYING].get("since_ms") for part in (before, said) if isinstance(part.get(RETRYING), dict)]
    if len(since) > 1 and all(isinstance(at, int) for at in since):
        out[RETRYING] = {**out[RETRYING], "since_ms": min(since)}
    return out


def with_failure(numbers: JsonObject, error: JsonObject) -> JsonObject:
    kind, before = str(error.get("kind") or "unknown"), numbers.get(FAILURES)
    counts: dict[str, Any] = dict(before) if isinstance(before, dict) else {}
    return {**numbers, FAILURES: {**counts, kind: counts.get(kind, 0) + 1}}
