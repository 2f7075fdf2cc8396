"""The cluster as one worker knows it, for readers: what runs, what does not, and why not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from cdcworker.coordinator.errors import NO_PLUGIN, NO_WORKER, TASK_WAITS, WORKER_LOST
from cdcworker.coordinator.events import Now
from cdcworker.coordinator.herd_state import HerdState
from cdcworker.coordinator.lost import waiting_of
from cdcworker.coordinator.model import Connector, JsonObject, Presence, TaskId, TaskStatus, View
from cdcworker.coordinator.placement import CLASS, able_workers
from cdcworker.coordinator.state import task_set_of
from cdcworker.coordinator.status import live_workers
from cdcworker.schemas.errors import CdcError


def view(state: HerdState, now: Now, kafka_cluster_id: str = "") -> View:
    """An immutable picture. What grows with the number of tasks is worked out by the first who looks at it."""
    me, work = state.me, state.work
    workers = live_workers(state.status, state.settings.session_timeout_s)
    has_lease = work.acked is not None and now.mono - work.acked < state.settings.mute_after_s
    waiting = _waiting_s(state, now)
    topics: dict[str, frozenset[str]] = {}
    for task_id, names in state.status.topics.items():
        if task_id.connector in state.cluster.connectors:
            topics[task_id.connector] = topics.get(task_id.connector, frozenset()) | names
    return View(
        worker_id=me.worker_id,
        boot_id=me.boot_id,
        url=me.url,
        kafka_cluster_id=kafka_cluster_id,
        ready=state.started and not state.left and me.worker_id in workers and has_lease,
        is_leader=state.lead.role == "leading",
        state=state.cluster,
        workers=workers,
        statuses=Statuses(state, workers, waiting),
        topics=topics,
        draining=me.draining,
        waiting_s=waiting,
    )


def _waiting_s(state: HerdState, now: Now) -> dict[TaskId, float]:
    """For how long tasks still wait for their worker, by this worker's clock."""
    out: dict[TaskId, float] = {}
    for what, deadline in state.cluster.deadlines.items():
        seen = state.lead.seen.get(what)
        left = (seen.mono if seen else now.mono) + deadline.delay_ms / 1000 - now.mono
        out.update((entry.id, max(0.0, left)) for entry in deadline.tasks)
    return out


class Statuses(Mapping[TaskId, TaskStatus]):
    """The status of every task of every connector. One that no live worker backs is UNASSIGNED, whatever it last said."""

    def __init__(self, state: HerdState, workers: Mapping[str, Presence], waiting: Mapping[TaskId, float]) -> None:
        self._state = state
        self._workers = workers
        self._waiting = waiting
        self._made: dict[TaskId, TaskStatus] | None = None

    def __getitem__(self, task_id: TaskId) -> TaskStatus:
        return self._all()[task_id]

    def __iter__(self) -> Iterator[TaskId]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> dict[TaskId, TaskStatus]:
        if self._made is None:
            self._made = self._make()
        return self._made

    def _make(self) -> dict[TaskId, TaskStatus]:
        cluster = self._state.cluster
        backed, assigned = {}, set()
        for worker_id, assignment in cluster.assignments.items():
            presence = self._workers.get(worker_id)
            is_alive = presence is not None and presence.boot_id == assignment.boot_id
            for entry in assignment.tasks:
                assigned.add(entry.id)
                if is_alive:
                    backed[(entry.id, entry.task_epoch)] = worker_id
        out = {}
        for name, connector in cluster.connectors.items():
            tasks = task_set_of(cluster, name)
            count = len(tasks.tasks) if tasks else 0
            why = _WhyNot(self._state, self._workers, connector)
            for task_id in (TaskId(name, n) for n in range(count)):
                status = self._state.status.tasks.get(task_id)
                if status and backed.get((task_id, status.task_epoch)) == status.worker_id:
                    out[task_id] = status
                else:
                    error = why.lost(task_id, status)
                    if task_id not in assigned:
                        error = why.unassigned(task_id, self._waiting.get(task_id)) or error
                    blank = TaskStatus(name, task_id.task, "UNASSIGNED", "", 0)
                    out[task_id] = replace(status or blank, state="UNASSIGNED", error=error)
        return out


class _WhyNot:
    """Why tasks of a connector run nowhere."""

    def __init__(self, state: HerdState, workers: Mapping[str, Presence], connector: Connector) -> None:
        self._state = state
        self._workers = workers
        self._connector = connector
        self._nowhere: JsonObject | None = None
        self._looked = False
        self._awaited: Mapping[TaskId, str] | None = None

    def lost(self, task_id: TaskId, status: TaskStatus | None) -> JsonObject | None:
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
            if self._awaited is None:
                self._awaited = waiting_of(self._state.cluster)
            worker = self._awaited.get(task_id, "")
            where: dict[str, str | int] = {"worker": worker, "task": str(task_id)}
            text = f"waits for worker {worker}, {waits_s:.0f} s at most"
            return CdcError(TASK_WAITS, text, where=where).to_dict()
        if not self._looked:
            self._looked, self._nowhere = True, self._fits_nowhere()
        return self._nowhere

    def _fits_nowhere(self) -> JsonObject | None:
        takers = {w: presence for w, presence in self._workers.items() if not presence.draining}
        if not takers:
            return CdcError(NO_WORKER, "no live worker takes tasks").to_dict()
        able = able_workers(self._connector, takers)
        if able is None or able:
            return None
        name = self._connector.config.get(CLASS, "").strip()
        return CdcError(NO_PLUGIN, f"no live worker has {name}", where={"connector": self._connector.name}).to_dict()
