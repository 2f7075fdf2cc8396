"""Texts for the states of workers and tasks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def worker_state(worker: Mapping[str, Any]) -> str:
    return "gone" if not worker["alive"] else "draining" if worker["draining"] else "alive"


def task_states(cluster: Mapping[str, Any]) -> dict[str, int]:
    """Returns the number of tasks in each state."""
    return dict(Counter(task["state"] for task in cluster["tasks"]))


def state_counts(states: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {state}" for state, number in sorted(states.items())) or "none"


def retry_text(task: Mapping[str, Any], now_s: float | None = None) -> str:
    """Returns what a running task retries, from its status; empty for none."""
    tries = task.get("retrying")
    if not tries:
        return ""
    since_s = max(0.0, (time.time() if now_s is None else now_s) - (tries.get("since_ms") or 0) / 1000)
    count = tries.get("count") or 1
    times = "once" if count == 1 else f"{count} times"
    return f"tries again: [{tries.get('code', '?')}] {times} in {duration_text(since_s)}"


def held_tables_text(task: Mapping[str, Any]) -> str:
    """Returns how many tables a running task holds back, from its status; empty for none."""
    count = task.get("held_tables") or 0
    return f"{count} table{'s are' if count > 1 else ' is'} held back" if count else ""


def held_tables(numbers: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the tables that a task holds back with the reason: those of a source, or the topics of a sink."""
    source = [
        (str(one.get("table")), f"[{one.get('code')}] {one.get('message')}") for one in numbers.get("quarantine") or ()
    ]
    return source + sorted((numbers.get("paused") or {}).items())


def duration_text(seconds: float | None) -> str:
    """Returns a duration in the unit that fits; `-` for none."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f} s"
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.0f} h"
    )


def size(count: float) -> str:
    for unit in UNITS[:-1]:
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {UNITS[-1]}"
