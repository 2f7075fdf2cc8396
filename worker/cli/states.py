"""States as commands name them, of the cluster's picture."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def worker_state(worker: Mapping[str, Any]) -> str:
    return "gone" if not worker["alive"] else "draining" if worker["draining"] else "alive"


def task_states(cluster: Mapping[str, Any]) -> dict[str, int]:
    """How many tasks there are of each state."""
    return dict(Counter(task["state"] for task in cluster["tasks"]))


def in_states(states: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {state}" for state, number in sorted(states.items())) or "none"


def trying(task: Mapping[str, Any], now_s: float | None = None) -> str:
    """What a running task tries again and again, of its status; empty: nothing."""
    tries = task.get("retrying")
    if not tries:
        return ""
    since_s = max(0.0, (time.time() if now_s is None else now_s) - (tries.get("since_ms") or 0) / 1000)
    count = tries.get("count") or 1
    times = "once" if count == 1 else f"{count} times"
    return f"tries again: [{tries.get('code', '?')}] {times} in {lasting(since_s)}"


def holding(task: Mapping[str, Any]) -> str:
    """How many tables stand still while a running task's others go on, of its status; empty: none."""
    count = task.get("held_tables") or 0
    return f"{count} table{'s are' if count > 1 else ' is'} held back" if count else ""


def held_tables(numbers: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Which they are and why: a source's, or the topics of a sink's."""
    source = [
        (str(one.get("table")), f"[{one.get('code')}] {one.get('message')}") for one in numbers.get("quarantine") or ()
    ]
    return source + sorted((numbers.get("paused") or {}).items())


def lasting(seconds: float | None) -> str:
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
