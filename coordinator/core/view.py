"""The cluster as one worker knows it, for REST: which tasks run, and why others do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from cdcworker.coordinator.core.events import Now
from cdcworker.coordinator.core.herd_state import HerdState
from cdcworker.coordinator.core.lost_workers import waiting_tasks
from cdcworker.coordinator.core.placement import CONNECTOR_CLASS, workers_with_plugin
from cdcworker.coordinator.errors import NO_PLUGIN, NO_WORKER, TASK_WAITS, WORKER_LOST
from cdcworker.coordinator.log.config_fold import task_set_of
from cdcworker.coordinator.log.status_fold import live_workers
from cdcworker.coordinator.model import Connector, JsonObject, Presence, TaskId, TaskStatus, View
from cdcworker.schemas.errors import CdcError


def view(state: HerdState, now: Now, kafka_cluster_id: str = "") -> View:
    """Returns an immutable view. Statuses, which grow with the number of tasks, are computed when they are first
    read."""
    me, work = state.me, state.work
    workers = live_workers(state.status, state.settings.session_timeout_s)
    has_lease = work.lease_acked is not None and now.mono - work.lease_acked < state.settings.stop_producing_after_s
    waiting = _waiting_s(state, now)
    return View(
        worker_id=me.worker_id,
        boot_id=me.boot_id,
        url=me.url,
        kafka_cluster_id=kafka_cluster_id,
        ready=state.started and not state.left and me.worker_id in workers and has_lease,
        is_leader=state.lead.role == "leading",
        state=state.cluster,
        workers=workers,
        statuses=TaskStatuses(state, workers, waiting),
        topics=_of_connectors(state, state.status.topics),
        former_topics=_of_connectors(state, state.status.former_topics),
        draining=me.draining,
        waiting_s=waiting,
        has_read_logs=state.started,
    )


def _of_connectors(state: HerdState, of_tasks: Mapping[TaskId, frozenset[str]]) -> dict[str, frozenset[str]]:
    """Returns the topics of all tasks of each connector that there is."""
    out: dict[str, frozenset[str]] = {}
    for task_id, names in of_tasks.items():
        if task_id.connector in state.cluster.connectors:
            out[task_id.connector] = out.get(task_id.connector, frozenset()) | names
    return out


def _waiting_s(state: HerdState, now: Now) -> dict[TaskId, float]:
    """Returns for how many seconds tasks still wait for their worker, by this worker's clock."""
    out: dict[TaskId, float] = {}
    for key, deadline in state.cluster.deadlines.items():
        seen = state.lead.deadlines_seen.get(key)
        remaining_s = (seen.read_at if seen else now.mono) + deadline.delay_ms / 1000 - now.mono
        out.update((entry.id, max(0.0, remaining_s)) for entry in deadline.tasks)
    return out


class TaskStatuses(Mapping[TaskId, TaskStatus]):
    """The statuses of all tasks of all connectors. A task that no live worker runs is UNASSIGNED, whatever it last
    reported."""

    def __init__(self, state: HerdState, workers: Mapping[str, Presence], waiting: Mapping[TaskId, float]) -> None:
        self._state = state
        self._workers = workers
        self._waiting = waiting
        self._statuses: dict[TaskId, TaskStatus] | None = None

    def __getitem__(self, task_id: TaskId) -> TaskStatus:
        return self._all()[task_id]

    def __iter__(self) -> Iterator[TaskId]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> dict[TaskId, TaskStatus]:
        if self._statuses is None:
            self._statuses = self._compute()
        return self._statuses

    def _compute(self) -> dict[TaskId, TaskStatus]:
        cluster = self._state.cluster
        running, assigned = {}, set()
        for worker_id, assignment in cluster.assignments.items():
            presence = self._workers.get(worker_id)
            is_alive = presence is not None and presence.boot_id == assignment.boot_id
            for entry in assignment.tasks:
                assigned.add(entry.id)
                if is_alive:
                    running[(entry.id, entry.task_epoch)] = worker_id
        out = {}
        for name, connector in cluster.connectors.items():
            tasks = task_set_of(cluster, name)
            count = len(tasks.tasks) if tasks else 0
            reason = _UnassignedReason(self._state, self._workers, connector)
            for task_id in (TaskId(name, n) for n in range(count)):
                status = self._state.status.tasks.get(task_id)
                if status and running.get((task_id, status.task_epoch)) == status.worker_id:
                    out[task_id] = status
                else:
                    error = reason.worker_lost(task_id, status)
                    if task_id not in assigned:
                        error = reason.unassigned(task_id, self._waiting.get(task_id)) or error
                    blank = TaskStatus(name, task_id.task, "UNASSIGNED", "", 0)
                    out[task_id] = replace(status or blank, state="UNASSIGNED", error=error)
        return out


class _UnassignedReason:
    """Explains why tasks of a connector run nowhere."""

    def __init__(self, state: HerdState, workers: Mapping[str, Presence], connector: Connector) -> None:
        self._state = state
        self._workers = workers
        self._connector = connector
        self._no_worker_error: JsonObject | None = None
        self._has_checked = False
        self._waiting: Mapping[TaskId, str] | None = None

    def worker_lost(self, task_id: TaskId, status: TaskStatus | None) -> JsonObject | None:
        if (
            status is None
            or status.worker_id in self._workers
            or status.state not in ("RUNNING", "PAUSED", "RESTARTING")
        ):
            return None
        where: dict[str, str | int] = {"worker": status.worker_id, "task": str(task_id)}
        return CdcError(WORKER_LOST, "the worker of this task is gone", where=where).to_dict()

    def unassigned(self, task_id: TaskId, waits_s: float | None) -> JsonObject | None:
        if waits_s is not None:
            if self._waiting is None:
                self._waiting = waiting_tasks(self._state.cluster)
            worker = self._waiting.get(task_id, "")
            where: dict[str, str | int] = {"worker": worker, "task": str(task_id)}
            text = f"waits for worker {worker}, {waits_s:.0f} s at most"
            return CdcError(TASK_WAITS, text, where=where).to_dict()
        if not self._has_checked:
            self._has_checked, self._no_worker_error = True, self._placement_error()
        return self._no_worker_error

    def _placement_error(self) -> JsonObject | None:
        candidates = {w: presence for w, presence in self._workers.items() if not presence.draining}
        if not candidates:
            return CdcError(NO_WORKER, "no live worker takes tasks").to_dict()
        able = workers_with_plugin(self._connector, candidates)
        if able is None or able:
            return None
        name = self._connector.config.get(CONNECTOR_CLASS, "").strip()
        return CdcError(NO_PLUGIN, f"no live worker has {name}", where={"connector": self._connector.name}).to_dict()
