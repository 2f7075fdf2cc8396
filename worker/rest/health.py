"""The health of a connector, from its own state and the states of its tasks, with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from cdcworker.coordinator.log.task_metrics import HELD, RETRYING
from cdcworker.coordinator.model import TaskStatus

Health = Literal["healthy", "degraded", "failed"]
HELD_TABLES: Final = "held_tables"
"""The member of a task's state that counts the tables that are held back while the others go on."""


def quarantined_tables(status: TaskStatus) -> dict[str, int]:
    """Returns the member with the number of tables that the task holds back; none when it is 0."""
    count = status.metrics.get(HELD)
    return {HELD_TABLES: count} if isinstance(count, int) and count > 0 else {}


def health(state: str, tasks: Sequence[Mapping[str, Any]]) -> tuple[Health, str]:
    """Returns the health and its reason, which is empty for a healthy connector."""
    states = Counter(task["state"] for task in tasks)
    failed, task_count = states["FAILED"], len(tasks)
    if state == "STOPPED":
        return "healthy", ""
    if state == "FAILED":
        return "failed", "its tasks cannot be planned"
    reasons = [f"{failed} of {_with_count(task_count, 'task')} FAILED"] if failed else []
    if state == "RUNNING":
        others = ((name, count) for name, count in sorted(states.items()) if name not in ("RUNNING", "FAILED"))
        reasons += [f"{count} of {_with_count(task_count, 'task')} {name}" for name, count in others]
        if tries := sum(RETRYING in task for task in tasks):
            reasons.append(f"{_with_count(tries, 'task')} {'tries' if tries == 1 else 'try'} again and again")
    if tables := sum(task.get(HELD_TABLES, 0) for task in tasks):
        reasons.append(tables_held_back(tables))
    if failed and failed == task_count:
        return "failed", "; ".join(reasons)
    return ("degraded", "; ".join(reasons)) if reasons else ("healthy", "")


def tables_held_back(tables: int) -> str:
    return f"{_with_count(tables, 'table')} {'is' if tables == 1 else 'are'} held back"


def _with_count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
