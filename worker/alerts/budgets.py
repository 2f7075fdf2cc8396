"""Error budgets: for how long in the last thirty days connectors were later than an objective allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, NamedTuple

from cdcworker.worker.alerts.conditions import Condition, Judged, Key
from cdcworker.worker.alerts.settings import Objective

DAYS: Final = 30
DAY_S: Final = 86_400.0
BUDGET: Final = "budget"
ELAPSED_S_MAX: Final = 10.0
"""What the time since the last look counts for at most: nobody knows how late a connector was while nobody looked."""
WRITE_EVERY_S: Final = 300.0
"""How often budgets are stored: so much of them is forgotten at most when a leader dies."""


class Seconds(NamedTuple):
    """The seconds of a day of which the lag is known, and those of them in which it was more than the objective allows."""

    measured: float = 0.0
    late: float = 0.0


@dataclass(frozen=True, slots=True)
class Budget:
    """The `objective/<name>/<connector>` record of the topic of alerts."""

    objective: str
    connector: str
    days: Mapping[str, Seconds] = field(default_factory=dict)
    """By date in UTC, as ISO 8601 has it."""

    @property
    def key(self) -> Key:
        return self.objective, self.connector

    def total(self) -> Seconds:
        """Returns the seconds of all days that are kept."""
        kept = self.days.values()
        return Seconds(sum(day.measured for day in kept), sum(day.late for day in kept))

    def left(self, target: float) -> float:
        """Returns which share of the budget is left, 1 of an untouched one; below 0 more was used than there was. `target` is the
        share of thirty days in which the objective has to hold."""
        return 1.0 - self.total().late / ((1.0 - target) * DAYS * DAY_S)


def spent(budget: Budget, wall_ms: int, seconds: float, *, is_late: bool) -> Budget:
    """Returns the budget after more seconds, without days that are too old to count."""
    oldest, today = _window(wall_ms)
    days = {day: known for day, known in budget.days.items() if day >= oldest}
    measured, late = days.get(today, Seconds())
    days[today] = Seconds(measured + seconds, late + seconds * is_late)
    return replace(budget, days=days)


def _window(wall_ms: int) -> tuple[str, str]:
    """Returns the first and the last day that count now."""
    today = datetime.fromtimestamp(wall_ms / 1000, UTC).date()
    return (today - timedelta(days=DAYS - 1)).isoformat(), today.isoformat()


def expired(budgets: Mapping[Key, Budget], wall_ms: int) -> list[Key]:
    """Returns the budgets of which nothing counts any more: of connectors and objectives that are gone for thirty days."""
    oldest, _ = _window(wall_ms)
    return [key for key, budget in budgets.items() if all(day < oldest for day in budget.days)]


def used_up(budget: Budget, objective: Objective) -> Condition | None:
    """Returns the condition of a budget of which nothing is left."""
    if objective.target is None or budget.left(objective.target) > 0:
        return None
    allowed = (1.0 - objective.target) * DAYS * DAY_S
    text = f"late for {budget.total().late:.0f} s in {DAYS} days, the objective {objective.name} allows {allowed:.0f} s"
    return Condition(budget.connector, f"{BUDGET}/{objective.name}", objective.severity, text)


def after(
    budgets: Mapping[Key, Budget], judged: Mapping[Key, Judged], wall_ms: int, elapsed_s: float
) -> dict[Key, Budget]:
    """Returns the budgets after a look that judged connectors by objectives. `elapsed_s` is the time since the last one."""
    seconds, out = min(elapsed_s, ELAPSED_S_MAX), dict(budgets)
    for key, one in judged.items():
        if one.objective.target is not None and one.is_known:
            out[key] = spent(out.get(key, Budget(*key)), wall_ms, seconds, is_late=bool(one.late))
    return out


def to_json(budget: Budget) -> dict[str, Any]:
    """Returns the value of the record."""
    days = {day: [round(seconds.measured, 1), round(seconds.late, 1)] for day, seconds in budget.days.items()}
    return {"v": 1, "objective": budget.objective, "connector": budget.connector, "days": days}


def from_json(value: Mapping[str, Any]) -> Budget:
    """Returns the budget of a record's value. KeyError, TypeError or ValueError for one that is none."""
    days = {
        date.fromisoformat(day).isoformat(): Seconds(float(measured), float(late))
        for day, (measured, late) in dict(value["days"]).items()
    }
    return Budget(str(value["objective"]), str(value["connector"]), days)
