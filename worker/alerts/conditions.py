"""What is wrong with connectors now, from the cluster's state: the conditions that become incidents when they last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cdcworker.coordinator.log.task_metrics import RETRYING
from cdcworker.coordinator.model import Connector, TaskId, TaskStatus, View
from cdcworker.worker.alerts.settings import Objective, Severity, matches
from cdcworker.worker.rest import connect_json
from cdcworker.worker.rest.health import HELD_TABLES, tables_held_back

TABLES_MAX: Final = 10
"""So many tables are named in a condition."""
LATE: Final = "late"
LAG: Final = "lag_s"
LAG_OF_TABLES: Final = ("table_lag_s", "topic_lag_s")

Key = tuple[str, str]
"""A connector and the kind of its condition: of each there is one incident at a time."""
States = Sequence[Mapping[str, Any]]
Lag = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing that is wrong with a connector. `kind` is failed, unassigned, retrying, held_tables, or late or budget with
    the name of an objective behind it."""

    connector: str
    kind: str
    severity: Severity
    summary: str
    code: str = ""
    """The code of the error, where there is one."""
    tasks: tuple[int, ...] = ()
    tables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Judged:
    """How a connector does by an objective. `late` holds what is too far behind, by task and table, in seconds."""

    objective: Objective
    is_known: bool
    """False while no lag was measured that the objective judges."""
    late: Mapping[int, Lag]


def conditions(view: View, judgements: Mapping[tuple[str, str], Judged]) -> dict[Key, Condition]:
    """Returns all conditions. `judgements` are those of `judged`."""
    owners = connect_json.task_owners(view)
    found: dict[Key, Condition] = {}
    for name, connector in view.state.connectors.items():
        if connector.target_state == "STOPPED" and not connector.refused:
            continue
        count = len(connect_json.task_configs(view, connector))
        tasks = [connect_json.task_state(view, TaskId(name, number), owners) for number in range(count)]
        for condition in _of_connector(view, connector, tasks):
            found[name, condition.kind] = condition
    for (_, name), one in judgements.items():
        if (behind := late(name, one)) is not None:
            found[name, behind.kind] = behind
    return found


def _of_connector(view: View, connector: Connector, tasks: States) -> Iterator[Condition]:
    yield from _failed(view, connector, tasks)
    if connector.target_state == "RUNNING":
        yield from _unassigned(view, connector, tasks)
        yield from _retrying(connector, tasks)
    if tables := sum(task.get(HELD_TABLES, 0) for task in tasks):
        numbers = tuple(task["id"] for task in tasks if task.get(HELD_TABLES))
        yield Condition(connector.name, HELD_TABLES, "warning", tables_held_back(tables), tasks=numbers)


def _failed(view: View, connector: Connector, tasks: States) -> Iterator[Condition]:
    state, error = connect_json.connector_own_state(view, connector)
    if state == "FAILED":
        code = str((error or {}).get("code", ""))
        yield Condition(connector.name, "failed", "critical", "its tasks cannot be planned", code)
        return
    failed = [task for task in tasks if task["state"] == "FAILED"]
    if failed:
        codes = [str(task.get("error", {}).get("code", "")) for task in failed]
        numbers = tuple(task["id"] for task in failed)
        text = f"{len(failed)} of {_tasks(len(tasks))} FAILED"
        yield Condition(connector.name, "failed", "critical", text, codes[0], numbers)


def _unassigned(view: View, connector: Connector, tasks: States) -> Iterator[Condition]:
    numbers = tuple(
        task["id"]
        for task in tasks
        if task["state"] == "UNASSIGNED" and TaskId(connector.name, task["id"]) not in view.waiting_s
    )
    if numbers:
        text = f"{len(numbers)} of {_tasks(len(tasks))} run nowhere"
        yield Condition(connector.name, "unassigned", "critical", text, tasks=numbers)


def _retrying(connector: Connector, tasks: States) -> Iterator[Condition]:
    tries = [task for task in tasks if RETRYING in task]
    if tries:
        code = str(tries[0][RETRYING].get("code") or "")
        text = f"{len(tries)} of {_tasks(len(tasks))} try again and again"
        yield Condition(connector.name, RETRYING, "warning", text, code, tuple(task["id"] for task in tries))


def judged(
    view: View, objectives: Sequence[Objective], unassigned: Mapping[TaskId, Any]
) -> dict[tuple[str, str], Judged]:
    """Returns how each running connector does by each objective that is for it, by the objective's and the connector's name."""
    found: dict[tuple[str, str], Judged] = {}
    for name, connector in view.state.connectors.items():
        if connector.target_state == "RUNNING":
            ids = [TaskId(name, number) for number in range(len(connect_json.task_configs(view, connector)))]
            metrics = {task.task: _numbers(view.statuses.get(task), unassigned.get(task)) for task in ids}
            for objective in objectives:
                if matches(name, objective.connectors):
                    found[objective.name, name] = _judged(objective, metrics)
    return found


def _judged(objective: Objective, metrics: Mapping[int, Mapping[str, Any]]) -> Judged:
    lags = {number: dict(_lags(of_task, objective)) for number, of_task in metrics.items()}
    behind = {
        number: {table: lag for table, lag in known.items() if lag > objective.freshness_s}
        for number, known in lags.items()
    }
    return Judged(objective, any(lags.values()), {number: late for number, late in behind.items() if late})


def late(connector: str, one: Judged) -> Condition | None:
    """Returns the condition of a connector that is later than an objective allows."""
    if not one.late:
        return None
    worst = max(seconds for lags in one.late.values() for seconds in lags.values())
    tables = sorted({table for lags in one.late.values() for table in lags if table})
    objective = one.objective
    return Condition(
        connector,
        f"{LATE}/{objective.name}",
        objective.severity,
        f"{worst:.0f} s behind, the objective {objective.name} allows {objective.freshness_s:g} s",
        tasks=tuple(one.late),
        tables=tuple(tables[:TABLES_MAX]),
    )


def _numbers(status: TaskStatus | None, standing: Any) -> Mapping[str, Any]:
    return standing or (status.metrics if status is not None else {})


def _lags(metrics: Mapping[str, Any], objective: Objective) -> Iterator[tuple[str, float]]:
    """Yields the lags that the objective judges; the connector as a whole has no table's name."""
    if not objective.tables:
        lag = metrics.get(LAG)
        if isinstance(lag, int | float):
            yield "", lag
        return
    for name in LAG_OF_TABLES:
        lags = metrics.get(name)
        for table, lag in lags.items() if isinstance(lags, Mapping) else ():
            if isinstance(lag, int | float) and matches(table, objective.tables):
                yield table, lag


def _tasks(number: int) -> str:
    return f"{number} task{'s' * (number != 1)}"
