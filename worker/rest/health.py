"""How well a connector is, of its state and of its tasks', and why it is not better."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from cdcworker.coordinator.model import TaskStatus
from cdcworker.coordinator.numbers import HELD, RETRYING

Health = Literal["healthy", "degraded", "failed"]
HELD_TABLES: Final = "held_tables"
"""Of a task's state: how many tables stand still while the others go on."""


def standing(status: TaskStatus) -> dict[str, int]:
    count = status.metrics.get(HELD)
    return {HELD_TABLES: count} if isinstance(count, int) and count > 0 else {}


def health(state: str, tasks: Sequence[Mapping[str, Any]]) -> tuple[Health, str]:
    """And the reason, empty for a healthy one."""
    states = Counter(task["state"] for task in tasks)
    failed, all_of_it = states["FAILED"], len(tasks)
    if state == "STOPPED":
        return "healthy", ""
    if state == "FAILED":
        return "failed", "its tasks cannot be planned"
    reasons = [f"{failed} of {_counted(all_of_it, 'task')} FAILED"] if failed else []
    if state == "RUNNING":
        others = ((name, count) for name, count in sorted(states.items()) if name not in ("RUNNING", "FAILED"))
        reasons += [f"{count} of {_counted(all_of_it, 'task')} {name}" for name, count in others]
        if tries := sum(RETRYING in task for task in tasks):
            reasons.append(f"{_counted(tries, 'task')} {'tries' if tries == 1 else 'try'} again and again")
    if tables := sum(task.get(HELD_TABLES, 0) for task in tasks):
        reasons.append(held_back(tables))
    if failed and failed == all_of_it:
        return "failed", "; ".join(reasons)
    return ("degraded", "; ".join(reasons)) if reasons else ("healthy", "")


def held_back(tables: int) -> str:
    return f"{_counted(tables, 'table')} {'is' if tables == 1 else 'are'} held back"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
