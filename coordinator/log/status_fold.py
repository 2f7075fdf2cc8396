"""The fold of the status log: presence, leases by this worker's own clock, and the statuses of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.log.config_records import error_of, tombstone
from cdcworker.coordinator.log.record_fields import (
    UNREADABLE,
    flag,
    items,
    members,
    named_task,
    seconds,
    text,
    texts,
    whole,
)
from cdcworker.coordinator.log.task_weight import TaskWeight, updated_weight
from cdcworker.coordinator.model import JsonObject, Presence, TaskId, TaskState, TaskStatus
from cdcworker.schemas.untrusted.refusals import REFUSALS

TASK_STATES = get_args(TaskState)
CAPACITY_MAX = 1_000_000
PROTOCOL_MAX = 1_000_000
TASK_EPOCHS = 1 << 61
"""Task epochs of records are below this. It is half of what leaders can give, so that one record cannot use them up."""


@dataclass(frozen=True, slots=True)
class WorkerLease:
    """The last advance of a worker's lease counter, read at `seen_s` of the reader's lease clock."""

    boot_id: str
    count: int
    seen_s: float


@dataclass(frozen=True, slots=True)
class StatusState:
    """The state that the status log folds to.

    `lease_clock_s` is the reader's lease clock in seconds. It runs only while the reader's own lease advances, which is
    in the same partition. So an unreachable partition ages no lease, instead of making all other workers seem dead.
    """

    presence: Mapping[str, Presence] = field(default_factory=dict)
    leases: Mapping[str, WorkerLease] = field(default_factory=dict)
    tasks: Mapping[TaskId, TaskStatus] = field(default_factory=dict)
    topics: Mapping[TaskId, frozenset[str]] = field(default_factory=dict)
    former_topics: Mapping[TaskId, frozenset[str]] = field(default_factory=dict)
    """The topics of each task up to the last time that an operator had them forgotten."""
    weights: Mapping[TaskId, TaskWeight] = field(default_factory=dict)
    """The measured weight of each task. Every worker keeps them, so that a new leader continues with the same
    weights."""
    probed_gone: Mapping[str, WorkerLease] = field(default_factory=dict)
    """The leases of workers that a probe found gone; a lease that has advanced since is of a live worker."""
    lease_clock_s: float = 0.0
    own_seen_mono: float | None = None
    """The reader's monotonic clock when it last read an advance of its own lease."""


@dataclass(frozen=True, slots=True)
class LeaseReader:
    """The worker that folds: its identity, its monotonic clock, and how far one renewal may advance the lease clock."""

    worker_id: str
    boot_id: str
    mono: float
    advance_max_s: float


def fold_status(state: StatusState, records: Iterable[LogRecord], reader: LeaseReader) -> StatusState:
    """Returns the state after these records; unreadable ones are counted, told and skipped."""
    draft = _StatusDraft(reader, dict(state.presence), dict(state.leases), state.lease_clock_s, state.own_seen_mono)
    tasks, topics, weights = _CopyOnWrite(state.tasks), _CopyOnWrite(state.topics), _CopyOnWrite(state.weights)
    former_topics = _CopyOnWrite(state.former_topics)
    for record in records:
        kind, _, name = record.key.partition("/")
        if record.refused:
            continue  # it says nothing: neither a new state nor that there is none
        try:
            if kind == "worker":
                _apply_presence(draft, name, record.value)
            elif kind == "lease":
                _apply_lease(draft, name, record.value)
            elif kind == "task":
                _apply_task(tasks, weights, name, record.value)
            elif kind == "topics":
                _apply_topics(topics, name, record.value)
            elif kind == "former_topics":
                _apply_topics(former_topics, name, record.value)
        except UNREADABLE as exc:
            reason = type(exc).__name__
            REFUSALS.add("status", reason, partition=record.partition, offset=record.offset, key=record.key)
    return replace(
        state,
        presence=draft.presence,
        leases=draft.leases,
        tasks=tasks.value,
        topics=topics.value,
        former_topics=former_topics.value,
        weights=weights.value,
        probed_gone={w: lease for w, lease in state.probed_gone.items() if draft.leases.get(w) == lease}
        if state.probed_gone
        else state.probed_gone,
        lease_clock_s=draft.lease_clock_s,
        own_seen_mono=draft.own_seen_mono,
    )


def forget_statuses(state: StatusState) -> StatusState:
    """Prepares for reading the log again from its start: statuses are dropped, lease ages are kept."""
    return replace(state, presence={}, tasks={}, topics={}, former_topics={})


def drop_absent_leases(state: StatusState) -> StatusState:
    """Drops leases without a presence, after the log was read again."""
    return replace(state, leases={w: lease for w, lease in state.leases.items() if w in state.presence})


class _CopyOnWrite:
    """A mapping that is copied when it is first written: most batches only hold leases."""

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
class _StatusDraft:
    """The mutable parts of a StatusState while records are folded."""

    reader: LeaseReader
    presence: dict[str, Presence]
    leases: dict[str, WorkerLease]
    lease_clock_s: float
    own_seen_mono: float | None


def _apply_presence(draft: _StatusDraft, worker_id: str, value: JsonObject | None) -> None:
    if value is None:
        draft.presence.pop(worker_id, None)
        draft.leases.pop(worker_id, None)
        return
    presence = parse_presence(worker_id, value)
    draft.presence[worker_id] = presence
    lease = draft.leases.get(worker_id)
    if lease is None or lease.boot_id != presence.boot_id:
        draft.leases[worker_id] = WorkerLease(presence.boot_id, -1, draft.lease_clock_s)


def _apply_lease(draft: _StatusDraft, worker_id: str, value: JsonObject | None) -> None:
    if value is None:
        if worker_id not in draft.presence:  # a present worker will renew it
            draft.leases.pop(worker_id, None)
        return
    boot_id, count = text(value["boot_id"]), whole(value["n"])
    lease = draft.leases.get(worker_id)
    if lease is not None and lease.boot_id == boot_id and count <= lease.count:
        return
    reader = draft.reader
    if worker_id == reader.worker_id and boot_id == reader.boot_id:
        if draft.own_seen_mono is not None:
            draft.lease_clock_s += min(max(0.0, reader.mono - draft.own_seen_mono), reader.advance_max_s)
        draft.own_seen_mono = reader.mono
    present = draft.presence.get(worker_id)
    if present is not None and present.boot_id != boot_id:
        return  # a late renewal of a process that the presence record has replaced
    draft.leases[worker_id] = WorkerLease(boot_id, count, draft.lease_clock_s)


def _task_id(name: str) -> TaskId:
    connector, _, task = name.rpartition("/")
    return TaskId(connector, named_task(task))


def _apply_task(tasks: _CopyOnWrite, weights: _CopyOnWrite, name: str, value: JsonObject | None) -> None:
    task_id = _task_id(name)
    if value is None:
        tasks.put(task_id, None)
        weights.put(task_id, None)
        return
    status = parse_task_status(task_id, value)
    known = tasks.value.get(task_id)
    if known is None or status_order(status) >= status_order(known):
        tasks.put(task_id, status)
        before = weights.value.get(task_id)
        after = updated_weight(before, status.metrics) if status.state == "RUNNING" else before
        if after is not before:
            weights.put(task_id, after)


def _apply_topics(topics: _CopyOnWrite, name: str, value: JsonObject | None) -> None:
    topics.put(_task_id(name), None if value is None else frozenset(map(text, items(value["topics"]))))


def status_order(status: TaskStatus) -> tuple[int, int]:
    """Returns the order of reports about a task: a late report of a former owner never replaces a newer one."""
    return (status.task_epoch, status.seq)


def live_workers(state: StatusState, session_timeout_s: float) -> dict[str, Presence]:
    """Returns the announced workers whose lease has not lapsed, by id."""
    out = {}
    for worker_id, presence in sorted(state.presence.items()):
        lease = state.leases.get(worker_id)
        if lease is None or lease.boot_id != presence.boot_id or state.probed_gone.get(worker_id) == lease:
            continue
        if state.lease_clock_s - lease.seen_s <= session_timeout_s:
            out[worker_id] = presence
    return out


def silent_workers(state: StatusState, for_s: float) -> dict[str, Presence]:
    """Returns the announced workers whose lease has not advanced for `for_s` seconds, without those probed gone."""
    out = {}
    for worker_id, presence in sorted(state.presence.items()):
        lease = state.leases.get(worker_id)
        if lease is None or lease.boot_id != presence.boot_id or state.probed_gone.get(worker_id) == lease:
            continue
        if state.lease_clock_s - lease.seen_s >= for_s:
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
    """Parses the value of a `worker/<id>` record."""
    return Presence(
        worker_id=worker_id,
        boot_id=text(value["boot_id"]),
        url=text(value.get("url", "")),
        version=text(value.get("version", "")),
        plugins_hash=text(value.get("plugins_hash", "")),
        capacity=whole(value.get("capacity", 1), least=1, most=CAPACITY_MAX),
        labels=texts(value.get("labels", {})),
        draining=flag(value.get("draining", False)),
        prepared=flag(value.get("prepared", False)),
        returns=flag(value.get("returns", False)),
        plugins=texts(value.get("plugins", {})),
        protocol=whole(value.get("protocol", 1), most=PROTOCOL_MAX),
        floor=whole(value.get("floor", 1), most=PROTOCOL_MAX),
        extra={name: item for name, item in value.items() if name not in _PRESENCE},
    )


def presence_record(presence: Presence) -> LogRecord:
    """Returns a `worker/<id>` record."""
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
    return LogRecord(f"worker/{presence.worker_id}", value)


def lease_record(worker_id: str, boot_id: str, count: int) -> LogRecord:
    """Returns a `lease/<id>` record; `count` is the number of renewals of this boot."""
    return LogRecord(f"lease/{worker_id}", {"boot_id": boot_id, "n": count})


def parse_task_status(task_id: TaskId, value: JsonObject) -> TaskStatus:
    """Parses the value of a `task/<connector>/<task>` record."""
    return TaskStatus(
        connector=task_id.connector,
        task=task_id.task,
        state=_task_state(value["state"]),
        worker_id=text(value["worker_id"]),
        task_epoch=_epoch(value["task_epoch"]),
        seq=whole(value.get("seq", 0)),
        error=error_of(value.get("error")),
        metrics=members(value.get("metrics", {})),
        restarts=tuple(map(seconds, items(value.get("restarts", ())))),
    )


def _epoch(value: Any) -> int:
    """Checks a task epoch: leaders continue above the highest one, so an impossible value must not count."""
    return whole(value, most=TASK_EPOCHS - 1)


def _task_state(value: Any) -> Any:
    if value not in TASK_STATES:
        raise ValueError("no state of a task")
    return value


def task_key(task_id: TaskId) -> str:
    """Returns the key of a task's status record."""
    return f"task/{task_id.connector}/{task_id.task}"


def task_status_record(status: TaskStatus) -> LogRecord:
    """Returns a `task/<connector>/<task>` record."""
    value = {
        "state": status.state,
        "worker_id": status.worker_id,
        "task_epoch": status.task_epoch,
        "seq": status.seq,
        "error": status.error,
        "metrics": dict(status.metrics),
        "restarts": list(status.restarts),
    }
    return LogRecord(task_key(TaskId(status.connector, status.task)), value)


def topics_key(task_id: TaskId) -> str:
    """Returns the key of a task's record of topics."""
    return f"topics/{task_id.connector}/{task_id.task}"


def topics_record(task_id: TaskId, topics: Iterable[str]) -> LogRecord:
    """Returns a `topics/<connector>/<task>` record."""
    return LogRecord(topics_key(task_id), {"topics": sorted(topics)})


def former_topics_key(task_id: TaskId) -> str:
    """Returns the key of a task's record of topics that were forgotten."""
    return f"former_{topics_key(task_id)}"


def topics_reset(state: StatusState, connector: str) -> list[LogRecord]:
    """Returns the records that have the topics of a connector's tasks forgotten; what they were is kept for its deletion."""
    out: list[LogRecord] = []
    for task_id, topics in state.topics.items():
        if task_id.connector == connector:
            former = topics | state.former_topics.get(task_id, frozenset())
            out += [LogRecord(former_topics_key(task_id), {"topics": sorted(former)}), tombstone(topics_key(task_id))]
    return out
