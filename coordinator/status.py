"""The fold of the status log: who is there, whose lease is alive by this worker's own clock, what tasks report."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cdcworker.coordinator.api import Record
from cdcworker.coordinator.load import Load, metered
from cdcworker.coordinator.model import JsonObject, Presence, TaskId, TaskStatus
from cdcworker.coordinator.records import UNREADABLE, error_of

logger = logging.getLogger(__name__)

TASK_EPOCHS = 1 << 62


@dataclass(frozen=True, slots=True)
class Lease:
    """The last advance of a worker's lease counter, seen at `seen_s` of the judge's lease clock."""

    boot_id: str
    count: int
    seen_s: float


@dataclass(frozen=True, slots=True)
class StatusState:
    """What the status log folds to.

    `clock_s` is the judge's lease clock: it runs only while the judge's own lease, which lies in the same partition,
    advances. So a partition that nobody can reach ages nobody, and does not look like the death of many.
    """

    presence: Mapping[str, Presence] = field(default_factory=dict)
    leases: Mapping[str, Lease] = field(default_factory=dict)
    tasks: Mapping[TaskId, TaskStatus] = field(default_factory=dict)
    topics: Mapping[TaskId, frozenset[str]] = field(default_factory=dict)
    loads: Mapping[TaskId, Load] = field(default_factory=dict)
    """Every worker keeps them as it keeps lease ages: a new leader sees the same loads as the old one."""
    gone: Mapping[str, Lease] = field(default_factory=dict)
    """Leases of workers that a probe found gone; a lease that advances beyond it is a worker that is back."""
    clock_s: float = 0.0
    own_seen_mono: float | None = None


@dataclass(frozen=True, slots=True)
class Judge:
    """Who folds: the own identity, the own monotonic clock, and the most one own advance may add to the lease clock."""

    worker_id: str
    boot_id: str
    mono: float
    step_max_s: float


def fold_status(state: StatusState, records: Iterable[Record], judge: Judge) -> StatusState:
    """The state after these records."""
    work = _Work(judge, dict(state.presence), dict(state.leases), state.clock_s, state.own_seen_mono)
    tasks, topics, loads = _Cow(state.tasks), _Cow(state.topics), _Cow(state.loads)
    for record in records:
        kind, _, name = record.key.partition("/")
        try:
            if kind == "worker":
                _take_presence(work, name, record.value)
            elif kind == "lease":
                _take_lease(work, name, record.value)
            elif kind == "task":
                _take_task(tasks, loads, name, record.value)
            elif kind == "topics":
                _take_topics(topics, name, record.value)
        except UNREADABLE as exc:
            logger.warning("status record unreadable key=%s error=%s", record.key, type(exc).__name__)
    return replace(
        state,
        presence=work.presence,
        leases=work.leases,
        tasks=tasks.value,
        topics=topics.value,
        loads=loads.value,
        gone={w: lease for w, lease in state.gone.items() if work.leases.get(w) == lease} if state.gone else state.gone,
        clock_s=work.clock_s,
        own_seen_mono=work.own_seen_mono,
    )


def forget(state: StatusState) -> StatusState:
    """Before the log is read again from its start: what is not in it any more must go, what was timed stays."""
    return replace(state, presence={}, tasks={}, topics={})


def settle(state: StatusState) -> StatusState:
    """After it: leases of workers that are not there any more."""
    return replace(state, leases={w: lease for w, lease in state.leases.items() if w in state.presence})


class _Cow:
    """A mapping that is copied when it is first written: most batches hold leases only."""

    def __init__(self, value: Mapping[TaskId, Any]) -> None:
        self.value = value
        self._own = False

    def put(self, key: TaskId, item: object | None) -> None:
        if not self._own:
            self.value, self._own = dict(self.value), True
        assert isinstance(self.value, dict)
        if item is None:
            self.value.pop(key, None)
        else:
            self.value[key] = item


@dataclass(slots=True)
class _Work:
    judge: Judge
    presence: dict[str, Presence]
    leases: dict[str, Lease]
    clock_s: float
    own_seen_mono: float | None


def _take_presence(work: _Work, worker_id: str, value: JsonObject | None) -> None:
    if value is None:
        work.presence.pop(worker_id, None)
        work.leases.pop(worker_id, None)
        return
    presence = parse_presence(worker_id, value)
    work.presence[worker_id] = presence
    lease = work.leases.get(worker_id)
    if lease is None or lease.boot_id != presence.boot_id:
        work.leases[worker_id] = Lease(presence.boot_id, -1, work.clock_s)


def _take_lease(work: _Work, worker_id: str, value: JsonObject | None) -> None:
    if value is None:
        if worker_id not in work.presence:  # of one that is there, the next renewal is on its way
            work.leases.pop(worker_id, None)
        return
    boot_id, count = str(value["boot_id"]), int(value["n"])
    lease = work.leases.get(worker_id)
    if lease is not None and lease.boot_id == boot_id and count <= lease.count:
        return
    judge = work.judge
    if worker_id == judge.worker_id and boot_id == judge.boot_id:
        if work.own_seen_mono is not None:
            work.clock_s += min(max(0.0, judge.mono - work.own_seen_mono), judge.step_max_s)
        work.own_seen_mono = judge.mono
    present = work.presence.get(worker_id)
    if present is not None and present.boot_id != boot_id:
        return  # a late renewal of a process that the presence record has replaced
    work.leases[worker_id] = Lease(boot_id, count, work.clock_s)


def _task_id(name: str) -> TaskId:
    connector, _, task = name.rpartition("/")
    return TaskId(connector, int(task))


def _take_task(tasks: _Cow, loads: _Cow, name: str, value: JsonObject | None) -> None:
    task_id = _task_id(name)
    if value is None:
        tasks.put(task_id, None)
        loads.put(task_id, None)
        return
    status = parse_task_status(task_id, value)
    known = tasks.value.get(task_id)
    if known is None or status_order(status) >= status_order(known):
        tasks.put(task_id, status)
        before = loads.value.get(task_id)
        after = metered(before, status.metrics) if status.state == "RUNNING" else before
        if after is not before:
            loads.put(task_id, after)


def _take_topics(topics: _Cow, name: str, value: JsonObject | None) -> None:
    topics.put(_task_id(name), None if value is None else frozenset(map(str, value["topics"])))


def status_order(status: TaskStatus) -> tuple[int, int]:
    """A zombie's late report never covers a newer owner's."""
    return (status.task_epoch, status.seq)


def live_workers(state: StatusState, session_timeout_s: float) -> dict[str, Presence]:
    """Workers that announced themselves and whose lease has not lapsed, by id."""
    out = {}
    for worker_id, presence in sorted(state.presence.items()):
        lease = state.leases.get(worker_id)
        if lease is None or lease.boot_id != presence.boot_id or state.gone.get(worker_id) == lease:
            continue
        if state.clock_s - lease.seen_s <= session_timeout_s:
            out[worker_id] = presence
    return out


def silent_workers(state: StatusState, for_s: float) -> dict[str, Presence]:
    """Workers that are there and whose lease has not advanced for so long, unless it is known that they are gone."""
    out = {}
    for worker_id, presence in sorted(state.presence.items()):
        lease = state.leases.get(worker_id)
        if lease is None or lease.boot_id != presence.boot_id or state.gone.get(worker_id) == lease:
            continue
        if state.clock_s - lease.seen_s >= for_s:
            out[worker_id] = presence
    return out


# --- records --------------------------------------------------------------------------------------------------------


_PRESENCE = frozenset(
    {
        "boot_id",
        "url",
        "version",
        "plugins_hash",
        "capacity",
        "labels",
        "draining",
        "returns",
        "prepared",
        "plugins",
        "protocol",
        "floor",
    }
)


def parse_presence(worker_id: str, value: JsonObject) -> Presence:
    return Presence(
        worker_id=worker_id,
        boot_id=str(value["boot_id"]),
        url=str(value.get("url", "")),
        version=str(value.get("version", "")),
        plugins_hash=str(value.get("plugins_hash", "")),
        capacity=int(value.get("capacity", 1)),
        labels=dict(value.get("labels", {})),
        draining=bool(value.get("draining", False)),
        prepared=bool(value.get("prepared", False)),
        returns=bool(value.get("returns", False)),
        plugins=dict(value.get("plugins", {})),
        protocol=int(value.get("protocol", 1)),
        floor=int(value.get("floor", 1)),
        extra={name: item for name, item in value.items() if name not in _PRESENCE},
    )


def presence_record(presence: Presence) -> Record:
    value = {
        **presence.extra,
        "boot_id": presence.boot_id,
        "url": presence.url,
        "version": presence.version,
        "plugins_hash": presence.plugins_hash,
        "capacity": presence.capacity,
        "labels": dict(presence.labels),
        "draining": presence.draining,
        "returns": presence.returns,
        "prepared": presence.prepared,
        "plugins": dict(presence.plugins),
        "protocol": presence.protocol,
        "floor": presence.floor,
    }
    return Record(f"worker/{presence.worker_id}", value)


def lease_record(worker_id: str, boot_id: str, count: int) -> Record:
    return Record(f"lease/{worker_id}", {"boot_id": boot_id, "n": count})


def parse_task_status(task_id: TaskId, value: JsonObject) -> TaskStatus:
    return TaskStatus(
        connector=task_id.connector,
        task=task_id.task,
        state=value["state"],
        worker_id=str(value["worker_id"]),
        task_epoch=_epoch(value["task_epoch"]),
        seq=int(value.get("seq", 0)),
        error=error_of(value.get("error")),
        metrics=dict(value.get("metrics", {})),
        restarts=tuple(map(float, value.get("restarts", ()))),
    )


def _epoch(value: Any) -> int:
    """Leaders go on from the highest that they read: one that no leader can have given must not be it."""
    if not 0 <= (epoch := int(value)) < TASK_EPOCHS:
        raise ValueError("no task epoch")
    return epoch


def task_key(task_id: TaskId) -> str:
    return f"task/{task_id.connector}/{task_id.task}"


def task_status_record(status: TaskStatus) -> Record:
    value = {
        "state": status.state,
        "worker_id": status.worker_id,
        "task_epoch": status.task_epoch,
        "seq": status.seq,
        "error": status.error,
        "metrics": dict(status.metrics),
        "restarts": list(status.restarts),
    }
    return Record(task_key(TaskId(status.connector, status.task)), value)


def topics_key(task_id: TaskId) -> str:
    return f"topics/{task_id.connector}/{task_id.task}"


def topics_record(task_id: TaskId, topics: Iterable[str]) -> Record:
    return Record(topics_key(task_id), {"topics": sorted(topics)})
