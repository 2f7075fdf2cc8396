"""How late is a task that stands still? It is known only since when it may have left something unread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

SINCE: Final = "since_s"
"""What a measurement remembers: the last moment at which nothing waited."""


def standing_lag(
    numbers: Mapping[str, Any], memory: Mapping[str, Any], now_s: float, *, behind: bool
) -> tuple[float, dict[str, Any]]:
    """Returns the seconds that what waits is late at most, and what is to be remembered. `numbers`: what the task reported
    last; whoever was late then has been since."""
    since = memory.get(SINCE)
    if not behind:
        since = now_s
    elif not isinstance(since, int | float):
        late = numbers.get("lag_s")
        since = now_s - (late if isinstance(late, int | float) else 0.0)
    return round(max(0.0, now_s - since), 3), {SINCE: since}


def of_tables(numbers: Mapping[str, Any], name: str) -> Mapping[str, float]:
    """Returns what the task has told of its tables under a name."""
    found = numbers.get(name)
    return found if isinstance(found, Mapping) else {}


def dealt(tables: Mapping[str, float], lag_bytes: int) -> dict[str, int]:
    """Returns the bytes dealt out as those before were; nothing where the task has told of none."""
    total = sum(tables.values())
    return {name: round(lag_bytes * size / total) for name, size in tables.items()} if total else {}
