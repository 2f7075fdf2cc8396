"""The cluster's state in the JSON of Kafka Connect's REST API."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cdcworker.coordinator.errors import RECORD_REFUSED
from cdcworker.coordinator.log.task_metrics import RETRYING
from cdcworker.coordinator.model import AssignedTask, Connector, TaskId, TaskSet, TaskStatus, View
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.rest.health import HELD_TABLES, health, quarantined_tables

STATE_MEMBERS: Final = ("name", "connector", "tasks", "type")
TASK_MEMBERS: Final = ("id", "state", "worker_id", "trace", "version")
"""The members of Kafka Connect's ConnectorStateInfo and of the states in it; ours are shown to clients that ask for
them, since there are clients that take no others."""
Mask = Callable[[Mapping[str, str]], dict[str, str]]
Json = dict[str, Any]

TOPICS = "topics"
PATTERN = "topics.regex"


@dataclass(frozen=True, slots=True)
class TaskOwner:
    """The worker that a task is assigned to, and whether that very process of the worker is alive."""

    worker_id: str
    task: AssignedTask
    alive: bool
    version: str


def task_set(view: View, connector: Connector) -> TaskSet | None:
    """Returns the connector's task set, None when the only one is of an earlier incarnation."""
    tasks = view.state.task_sets.get(connector.name)
    return tasks if tasks is not None and tasks.incarnation == connector.incarnation else None


def task_configs(view: View, connector: Connector) -> tuple[Mapping[str, str], ...]:
    """Returns the configs of the connector's tasks; none for a stopped connector."""
    planned = task_set(view, connector)
    return planned.tasks if planned is not None and connector.target_state != "STOPPED" else ()


def task_owners(view: View) -> dict[TaskId, TaskOwner]:
    """Returns the owner of each assigned task whose connector still exists in the same incarnation."""
    out: dict[TaskId, TaskOwner] = {}
    for worker_id, assignment in view.state.assignments.items():
        presence = view.workers.get(worker_id)
        alive = presence is not None and presence.boot_id == assignment.boot_id
        for task in assignment.tasks:
            connector = view.state.connectors.get(task.connector)
            owners = out.get(task.id)
            newer = owners is None or task.task_epoch > owners.task.task_epoch
            if connector is not None and connector.incarnation == task.incarnation and newer:
                out[task.id] = TaskOwner(worker_id, task, alive, presence.version if presence else "")
    return out


def connector_own_state(view: View, connector: Connector) -> tuple[str, Json | None]:
    """Returns the state of the connector without its tasks: the target state, or FAILED with the error of its plan."""
    if connector.refused:
        error = CdcError(RECORD_REFUSED, f"the connector's record is refused: {connector.refused}")
        return "FAILED", error.to_dict()
    planned = task_set(view, connector)
    failed = planned is not None and planned.error
    return ("FAILED", dict(failed)) if failed else (connector.target_state, None)


def task_ids(view: View) -> Iterator[TaskId]:
    """Returns the ids of all tasks, ordered by the names of their connectors."""
    for name, connector in sorted(view.state.connectors.items()):
        yield from (TaskId(name, number) for number in range(len(task_configs(view, connector))))


def connector_info(view: View, connector: Connector, mask: Mask) -> Json:
    """Returns Kafka Connect's ConnectorInfo with masked secrets."""
    configs = task_configs(view, connector)
    return {
        "name": connector.name,
        "config": mask({"name": connector.name, **connector.config}),
        "tasks": [{"connector": connector.name, "task": number} for number in range(len(configs))],
        "type": connector.kind,
    }


def task_infos(view: View, connector: Connector, mask: Mask) -> list[Json]:
    """Returns Kafka Connect's TaskInfo of each task; a task's config without `connector.class` is masked by its
    connector's."""
    kind = {name: connector.config[name] for name in ("connector.class",) if name in connector.config}
    out = []
    for number, share in enumerate(task_configs(view, connector)):
        config = masked_share(mask, kind, given_share(connector.config, share))
        out.append({"id": {"connector": connector.name, "task": number}, "config": config})
    return out


def given_share(config: Mapping[str, str], share: Mapping[str, str]) -> dict[str, str]:
    """Returns a task's config as Kafka Connect shows it: a sink's pattern of topics as it was given, and none of the empty
    values that a split puts in the place of what does not count any more."""
    shown = {name: value for name, value in share.items() if value or name in config}
    if config.get(PATTERN):
        shown[PATTERN] = config[PATTERN]
        if TOPICS not in config:
            shown.pop(TOPICS, None)
    return shown


def whole_shares(connector: Connector, shares: Iterable[Mapping[str, str]]) -> Iterator[dict[str, str]]:
    """Yields the configs of tasks as they are masked: with the class of their connector."""
    kind = {name: connector.config[name] for name in ("connector.class",) if name in connector.config}
    return ({**kind, **share} for share in shares)


def masked_share(mask: Mask, kind: Mapping[str, str], share: Mapping[str, str]) -> dict[str, str]:
    """Returns a task's config with its secrets masked. `kind` holds the `connector.class`, which says what is a secret."""
    masked = mask({**kind, **share})
    return {name: value for name, value in masked.items() if name in share or name not in kind}


def trace(error: Mapping[str, Any]) -> str:
    """Returns an error as the text that Kafka Connect shows as `trace`."""
    hint = error.get("hint")
    return f"[{error.get('code', 'internal.unexpected')}] {error.get('message', '')}" + (f" ({hint})" if hint else "")


def connector_state(view: View, connector: Connector) -> Json:
    """Returns Kafka Connect's ConnectorStateInfo; the connector itself runs at the leader."""
    owners = task_owners(view)
    tasks = [
        task_state(view, TaskId(connector.name, number), owners) for number in range(len(task_configs(view, connector)))
    ]
    leader = view.state.leader
    state, error = connector_own_state(view, connector)
    own: Json = {"state": state, "worker_id": leader.worker_id if leader else ""}
    presence = view.workers.get(leader.worker_id) if leader else None
    if presence is not None and presence.version:
        own["version"] = presence.version
    own |= _error_members(error)
    verdict, reason = health(own["state"], tasks)
    return {
        "name": connector.name,
        "connector": own,
        "tasks": tasks,
        "type": connector.kind,
        "health": verdict,
        **({"reason": reason} if reason else {}),
    }


def plain_state(state: Json) -> Json:
    """Returns a connector's state with the members of Kafka Connect's ConnectorStateInfo alone."""
    shown = {name: state[name] for name in STATE_MEMBERS}
    return {**shown, "connector": plain_task(state["connector"]), "tasks": list(map(plain_task, state["tasks"]))}


def plain_task(state: Json) -> Json:
    """Returns a task's or a connector's own state with Kafka Connect's members alone."""
    return {name: value for name, value in state.items() if name in TASK_MEMBERS}


def task_state(view: View, task: TaskId, owners: Mapping[TaskId, TaskOwner]) -> Json:
    """Returns the state that a living worker has reported under the present assignment, else UNASSIGNED."""
    owner = owners.get(task)
    if owner is None:
        known = view.statuses.get(task)
        return {
            "id": task.task,
            "state": "UNASSIGNED",
            "worker_id": "",
            **_error_members(known.error if known else None),
        }
    out: Json = {"id": task.task, "state": "UNASSIGNED", "worker_id": owner.worker_id}
    if owner.version:
        out["version"] = owner.version
    status = reported(view, owner)
    if status is None or not owner.alive:
        return out
    out["state"] = "UNASSIGNED" if status.state == "STOPPED" else status.state
    return out | _error_members(status.error) | _retries(status) | quarantined_tables(status)


def _retries(status: TaskStatus) -> Json:
    """Returns the members of a task that retries: it is RUNNING, as in Kafka Connect, with the reason and the time of
    the first try."""
    retries = status.metrics.get(RETRYING)
    if not isinstance(retries, dict) or status.state not in ("RUNNING", "RESTARTING"):
        return {}
    if not all(isinstance(retries.get(name), int) for name in ("count", "since_ms")):
        return {}
    return {RETRYING: {name: retries.get(name) for name in ("code", "count", "since_ms")}}


def _error_members(error: Mapping[str, Any] | None) -> Json:
    return {"trace": trace(error), "error": dict(error)} if error else {}


def reported(view: View, owner: TaskOwner) -> TaskStatus | None:
    """Returns the status that a task has reported under its present epoch, else None."""
    status = view.statuses.get(owner.task.id)
    return status if status is not None and status.task_epoch == owner.task.task_epoch else None


def restart_plan(state: Json, *, include_tasks: bool, only_failed: bool) -> Json:
    """Returns the state with everything that will restart shown as RESTARTING."""

    def mark(item: Json) -> Json:
        if only_failed and item["state"] != "FAILED":
            return item
        return {**item, "state": "RESTARTING"}

    tasks = [mark(task) for task in state["tasks"]] if include_tasks else state["tasks"]
    return {**state, "connector": mark(state["connector"]), "tasks": tasks}


def cluster(view: View) -> Json:
    """Returns the leader, the workers with their task counts, and the tasks with their newest metrics."""
    owners = task_owners(view)
    leader = view.state.leader
    load: dict[str, int] = {}
    for owner in owners.values():
        load[owner.worker_id] = load.get(owner.worker_id, 0) + 1
    names = sorted({*view.workers, *(name for name, item in view.state.assignments.items() if item.tasks)})
    return {
        "leader": {"id": leader.worker_id, "url": leader.url, "epoch": leader.epoch} if leader else None,
        "workers": [_worker(view, name, load.get(name, 0)) for name in names],
        "tasks": [_task(view, task, owners) for task in task_ids(view)],
        "version": view.state.version,
    }


def _worker(view: View, name: str, tasks: int) -> Json:
    presence = view.workers.get(name)
    return {
        "id": name,
        "url": presence.url if presence else None,
        "alive": presence is not None,
        "draining": presence.draining if presence else False,
        "returns": presence.returns if presence else False,
        "capacity": presence.capacity if presence else None,
        "protocol": presence.protocol if presence else None,
        "version": presence.version if presence else None,
        "tasks": tasks,
    }


def _task(view: View, task: TaskId, owners: Mapping[TaskId, TaskOwner]) -> Json:
    owner = owners.get(task)
    status = reported(view, owner) if owner else None
    state = task_state(view, task, owners)
    return {
        "connector": task.connector,
        "task": task.task,
        "state": state["state"],
        "worker": owner.worker_id if owner else None,
        "epoch": owner.task.task_epoch if owner else None,
        "metrics": dict(status.metrics) if status else {},
        "error": state.get("error"),
        RETRYING: state.get(RETRYING),
        HELD_TABLES: state.get(HELD_TABLES, 0),
        "waits_s": round(view.waiting_s[task], 1) if owner is None and task in view.waiting_s else None,
    }


def rebalance_journal(view: View, limit: int) -> list[Json]:
    """Returns the newest decisions about tasks."""
    return [
        {
            "seq": entry.seq,
            "ts": entry.ts_ms,
            "cause": entry.cause,
            "moves": [
                {
                    "connector": move.connector,
                    "task": move.task,
                    "from": move.source or None,
                    "to": move.target or None,
                    "why": move.why,
                }
                for move in entry.moves
            ],
        }
        for entry in view.journal[:limit]
    ]
