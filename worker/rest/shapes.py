"""The cluster's picture in Kafka Connect's JSON shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cdcworker.coordinator.model import AssignedTask, Connector, TaskId, TaskSet, TaskStatus, View
from cdcworker.coordinator.numbers import RETRYING
from cdcworker.worker.rest.health import HELD_TABLES, health, standing

Mask = Callable[[Mapping[str, str]], dict[str, str]]
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Holder:
    """Who is to run a task, and whether that very boot of the worker is alive."""

    worker_id: str
    task: AssignedTask
    alive: bool
    version: str


def task_set(view: View, connector: Connector) -> TaskSet | None:
    """The connector's task set; one of an earlier incarnation is void."""
    found = view.state.task_sets.get(connector.name)
    return found if found is not None and found.incarnation == connector.incarnation else None


def task_configs(view: View, connector: Connector) -> tuple[Mapping[str, str], ...]:
    found = task_set(view, connector)
    return found.tasks if found is not None and connector.target_state != "STOPPED" else ()


def holders(view: View) -> dict[TaskId, Holder]:
    """Who holds each assigned task of a connector that exists in the same incarnation."""
    out: dict[TaskId, Holder] = {}
    for worker_id, assignment in view.state.assignments.items():
        presence = view.workers.get(worker_id)
        alive = presence is not None and presence.boot_id == assignment.boot_id
        for task in assignment.tasks:
            connector = view.state.connectors.get(task.connector)
            held = out.get(task.id)
            newer = held is None or task.task_epoch > held.task.task_epoch
            if connector is not None and connector.incarnation == task.incarnation and newer:
                out[task.id] = Holder(worker_id, task, alive, presence.version if presence else "")
    return out


def own_state(view: View, connector: Connector) -> tuple[str, Json | None]:
    """Nothing runs for a connector itself: what is wanted of it, or FAILED with the error of its plan."""
    planned = task_set(view, connector)
    failed = planned is not None and planned.error
    return ("FAILED", dict(failed)) if failed else (connector.target_state, None)


def task_ids(view: View) -> Iterator[TaskId]:
    """Of every connector in the order of their names."""
    for name, connector in sorted(view.state.connectors.items()):
        yield from (TaskId(name, number) for number in range(len(task_configs(view, connector))))


def connector_info(view: View, connector: Connector, mask: Mask) -> Json:
    configs = task_configs(view, connector)
    return {
        "name": connector.name,
        "config": mask({"name": connector.name, **connector.config}),
        "tasks": [{"connector": connector.name, "task": number} for number in range(len(configs))],
        "type": connector.kind,
    }


def task_infos(view: View, connector: Connector, mask: Mask) -> list[Json]:
    """The shares of the tasks; those that lack the class are masked as their connector."""
    kind = {name: connector.config[name] for name in ("connector.class",) if name in connector.config}
    out = []
    for number, share in enumerate(task_configs(view, connector)):
        config = share_shown(mask, kind, share)
        out.append({"id": {"connector": connector.name, "task": number}, "config": config})
    return out


def share_shown(mask: Mask, kind: Mapping[str, str], share: Mapping[str, str]) -> dict[str, str]:
    """`kind`: the class of its connector, which says what is a secret."""
    masked = mask({**kind, **share})
    return {name: value for name, value in masked.items() if name in share or name not in kind}


def trace(error: Mapping[str, Any]) -> str:
    hint = error.get("hint")
    return f"[{error.get('code', 'internal.unexpected')}] {error.get('message', '')}" + (f" ({hint})" if hint else "")


def connector_state(view: View, connector: Connector) -> Json:
    """ConnectorStateInfo, at the leader."""
    held = holders(view)
    tasks = [
        task_state(view, TaskId(connector.name, number), held) for number in range(len(task_configs(view, connector)))
    ]
    leader = view.state.leader
    state, error = own_state(view, connector)
    own: Json = {"state": state, "worker_id": leader.worker_id if leader else ""}
    presence = view.workers.get(leader.worker_id) if leader else None
    if presence is not None and presence.version:
        own["version"] = presence.version
    own |= _why(error)
    verdict, reason = health(own["state"], tasks)
    return {
        "name": connector.name,
        "connector": own,
        "tasks": tasks,
        "type": connector.kind,
        "health": verdict,
        **({"reason": reason} if reason else {}),
    }


def task_state(view: View, task: TaskId, held: Mapping[TaskId, Holder]) -> Json:
    """What was reported under the present assignment by a living worker; anything else is UNASSIGNED."""
    holder = held.get(task)
    if holder is None:
        known = view.statuses.get(task)
        return {"id": task.task, "state": "UNASSIGNED", "worker_id": "", **_why(known.error if known else None)}
    out: Json = {"id": task.task, "state": "UNASSIGNED", "worker_id": holder.worker_id}
    if holder.version:
        out["version"] = holder.version
    status = reported(view, holder)
    if status is None or not holder.alive:
        return out
    out["state"] = "UNASSIGNED" if status.state == "STOPPED" else status.state
    return out | _why(status.error) | _tries(status) | standing(status)


def _tries(status: TaskStatus) -> Json:
    """A task that tries again is RUNNING, as Connect's would be; since when and why is said beside it."""
    found = status.metrics.get(RETRYING)
    if not isinstance(found, dict) or status.state not in ("RUNNING", "RESTARTING"):
        return {}
    return {RETRYING: {name: found.get(name) for name in ("code", "count", "since_ms")}}


def _why(error: Mapping[str, Any] | None) -> Json:
    return {"trace": trace(error), "error": dict(error)} if error else {}


def reported(view: View, holder: Holder) -> TaskStatus | None:
    status = view.statuses.get(holder.task.id)
    return status if status is not None and status.task_epoch == holder.task.task_epoch else None


def restart_plan(state: Json, *, include_tasks: bool, only_failed: bool) -> Json:
    """The state with everything that will restart shown as RESTARTING."""

    def mark(item: Json) -> Json:
        if only_failed and item["state"] != "FAILED":
            return item
        return {name: value for name, value in item.items() if name not in ("trace", "error")} | {"state": "RESTARTING"}

    tasks = [mark(task) for task in state["tasks"]] if include_tasks else state["tasks"]
    return {**state, "connector": mark(state["connector"]), "tasks": tasks}


def cluster(view: View) -> Json:
    """The picture for screens: leader, workers with their load, tasks with their last numbers."""
    held = holders(view)
    leader = view.state.leader
    load: dict[str, int] = {}
    for holder in held.values():
        load[holder.worker_id] = load.get(holder.worker_id, 0) + 1
    names = sorted({*view.workers, *(name for name, item in view.state.assignments.items() if item.tasks)})
    return {
        "leader": {"id": leader.worker_id, "url": leader.url, "epoch": leader.epoch} if leader else None,
        "workers": [_worker(view, name, load.get(name, 0)) for name in names],
        "tasks": [_task(view, task, held) for task in task_ids(view)],
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


def _task(view: View, task: TaskId, held: Mapping[TaskId, Holder]) -> Json:
    holder = held.get(task)
    status = reported(view, holder) if holder else None
    state = task_state(view, task, held)
    return {
        "connector": task.connector,
        "task": task.task,
        "state": state["state"],
        "worker": holder.worker_id if holder else None,
        "epoch": holder.task.task_epoch if holder else None,
        "metrics": dict(status.metrics) if status else {},
        "error": state.get("error"),
        RETRYING: state.get(RETRYING),
        HELD_TABLES: state.get(HELD_TABLES, 0),
        "waits_s": round(view.waiting_s[task], 1) if holder is None and task in view.waiting_s else None,
    }


def journal(view: View, limit: int) -> list[Json]:
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
