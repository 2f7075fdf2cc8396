"""The fold of the config log into ClusterState, and the record of each kind."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cdcworker.coordinator.api import Record
from cdcworker.coordinator.model import (
    AssignedTask,
    Assignment,
    ClusterState,
    Command,
    Connector,
    JsonObject,
    Leader,
    TaskSet,
)

logger = logging.getLogger(__name__)

FORMAT = "1"
LEADER = "leader"
TASK_EPOCH_BITS = 20


def task_epoch(leader_epoch: int, counter: int) -> int:
    """Strictly increasing over all leaders, without anybody remembering the last one."""
    if not 0 <= counter < 1 << TASK_EPOCH_BITS:
        raise ValueError(f"task epoch counter {counter} is out of range")
    return leader_epoch << TASK_EPOCH_BITS | counter


# --- fold -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Fold:
    """Mutable copy of a ClusterState while a batch is taken; a map is copied when it is first written."""

    state: ClusterState
    maps: dict[str, dict[str, Any]] = field(default_factory=dict)
    leader: Leader | None = None
    epoch: int = 0
    version: int = 0
    stale: set[str] = field(default_factory=set)

    def put(self, field_name: str, key: str, value: object | None) -> None:
        target = self.maps.get(field_name)
        if value is None and key not in (getattr(self.state, field_name) if target is None else target):
            return
        if target is None:
            target = self.maps[field_name] = dict(getattr(self.state, field_name))
        if value is None:
            target.pop(key, None)
        else:
            target[key] = value


def fold(state: ClusterState, record: Record) -> ClusterState:
    """The state after one more record."""
    return fold_all(state, (record,))


def fold_all(state: ClusterState, records: Iterable[Record]) -> ClusterState:
    """The state after all these records; the same as folding them one by one."""
    return fold_taken(state, records)[0]


def fold_taken(state: ClusterState, records: Iterable[Record]) -> tuple[ClusterState, list[Record]]:
    """The state after all these records, and those of them that counted.

    Each key is folded by itself, so that a log that compaction has thinned folds to the same state: what a record
    means together with others (a task set of another incarnation) is judged by the reader of the state.
    """
    work = _Fold(state, leader=state.leader, epoch=state.epoch, version=state.version, stale=set(state.stale_keys))
    taken = [record for record in records if _take(work, record)]
    after = replace(
        state,
        **work.maps,
        leader=work.leader,
        epoch=work.epoch,
        version=work.version,
        stale_keys=frozenset(work.stale),
    )
    return after, taken


def _take(work: _Fold, record: Record) -> bool:
    if record.offset >= 0:
        work.version = record.offset + 1
    epoch = record_epoch(record)
    if not _is_current(work, record, epoch):  # INV-7
        work.stale.add(record.key)
        return False
    work.epoch = epoch
    work.stale.discard(record.key)
    if record.key == LEADER:
        work.leader = _leader(record.value) if record.value is not None else None
        return True
    kind, _, name = record.key.partition("/")
    known = _KINDS.get(kind) if name else None
    value = _parse(known[1], name, record) if known and record.value is not None else None
    if known:
        work.put(known[0], name, value)
    work.put("settings", record.key, record.value if value is None else None)
    return True


def _parse(parser: Callable[[str, JsonObject], object], name: str, record: Record) -> object | None:
    """The typed value; None for one that this version cannot read: it is kept as it is, like an unknown kind."""
    try:
        return parser(name, record.value or {})
    except (KeyError, TypeError, ValueError) as exc:
        logger.error(
            "config record unreadable key=%s offset=%d error=%s", record.key, record.offset, type(exc).__name__
        )
        return None


def _is_current(work: _Fold, record: Record, epoch: int) -> bool:
    """Not of an older epoch, and not a second claim of an epoch that another process already has."""
    if epoch < work.epoch:
        return False
    if record.key != LEADER or record.value is None or work.leader is None:
        return True
    return epoch > work.leader.epoch or record.value.get("boot_id") == work.leader.boot_id


def record_epoch(record: Record) -> int:
    """The leader epoch of a record; a record without a readable one is as old as can be."""
    text = record.headers.get("e", "")
    return int(text) if text.isascii() and text.isdigit() else 0


# --- values ---------------------------------------------------------------------------------------------------------
# Unknown fields of a value are ignored and missing ones have defaults, so that versions can share a log.


def _leader(value: JsonObject) -> Leader:
    return Leader(
        epoch=int(value["epoch"]),
        worker_id=str(value["worker_id"]),
        boot_id=str(value["boot_id"]),
        url=str(value.get("url", "")),
        hint=int(value.get("hint", 0)),
    )


def _connector(name: str, value: JsonObject) -> Connector:
    version = int(value["version"])
    return Connector(
        name=name,
        incarnation=str(value["incarnation"]),
        version=version,
        config=dict(value["config"]),
        target_state=value["target_state"],
        kind=value.get("kind", "source"),
        labels=dict(value.get("labels", {})),
        created_ms=int(value.get("created", 0)),
        updated_ms=int(value.get("updated", 0)),
        config_version=int(value.get("config_version", version)),
    )


def _task_set(_name: str, value: JsonObject) -> TaskSet:
    return TaskSet(
        incarnation=str(value["incarnation"]),
        config_version=int(value["config_version"]),
        tasks=tuple(dict(share) for share in value.get("tasks", ())),
        error=value.get("error"),
        task_epoch=int(value.get("task_epoch", 0)),
    )


def _entries(value: Iterable[Any]) -> tuple[AssignedTask, ...]:
    return tuple(AssignedTask(str(c), str(i), int(t), int(e)) for c, i, t, e in value)


def _assignment(_worker_id: str, value: JsonObject) -> Assignment:
    return Assignment(
        boot_id=str(value["boot_id"]),
        tasks=_entries(value.get("tasks", ())),
        revoke=_entries(value.get("revoke", ())),
        reason=str(value.get("reason", "")),
    )


def _command(command_id: str, value: JsonObject) -> Command:
    return Command(
        id=command_id,
        kind=str(value["kind"]),
        scope=dict(value.get("scope", {})),
        expires_ms=int(value.get("expires", 0)),
    )


_KINDS: Mapping[str, tuple[str, Callable[[str, JsonObject], object]]] = {
    "connector": ("connectors", _connector),
    "tasks": ("task_sets", _task_set),
    "assignment": ("assignments", _assignment),
    "deadline": ("deadlines", lambda _name, value: value),
    "command": ("commands", _command),
}


# --- records --------------------------------------------------------------------------------------------------------


def leader_record(leader: Leader) -> Record:
    value = {
        "epoch": leader.epoch,
        "worker_id": leader.worker_id,
        "boot_id": leader.boot_id,
        "url": leader.url,
        "hint": leader.hint,
    }
    return Record(LEADER, value)


def connector_record(connector: Connector) -> Record:
    value = {
        "incarnation": connector.incarnation,
        "version": connector.version,
        "config_version": config_version(connector),
        "config": dict(connector.config),
        "target_state": connector.target_state,
        "kind": connector.kind,
        "labels": dict(connector.labels),
        "created": connector.created_ms,
        "updated": connector.updated_ms,
    }
    return Record(f"connector/{connector.name}", value)


def task_set_record(name: str, tasks: TaskSet) -> Record:
    value: JsonObject = {
        "incarnation": tasks.incarnation,
        "config_version": tasks.config_version,
        "task_epoch": tasks.task_epoch,
        "tasks": [dict(share) for share in tasks.tasks],
    }
    if tasks.error is not None:
        value["error"] = tasks.error
    return Record(f"tasks/{name}", value)


def assignment_record(worker_id: str, assignment: Assignment) -> Record:
    value = {
        "boot_id": assignment.boot_id,
        "tasks": [list(entry) for entry in assignment.tasks],
        "revoke": [list(entry) for entry in assignment.revoke],
        "reason": assignment.reason,
    }
    return Record(f"assignment/{worker_id}", value)


def command_record(command: Command) -> Record:
    value = {"kind": command.kind, "scope": command.scope, "expires": command.expires_ms}
    return Record(f"command/{command.id}", value)


def tombstone(key: str) -> Record:
    return Record(key, None)


def current_record(state: ClusterState, key: str) -> Record:
    """What the state holds under this key, as a record to write again; a tombstone when it holds nothing."""
    kind, _, name = key.partition("/")
    if key == LEADER:
        return leader_record(state.leader) if state.leader else tombstone(key)
    if kind == "connector" and name in state.connectors:
        return connector_record(state.connectors[name])
    if kind == "tasks" and name in state.task_sets:
        return task_set_record(name, state.task_sets[name])
    if kind == "assignment" and name in state.assignments:
        return assignment_record(name, state.assignments[name])
    if kind == "command" and name in state.commands:
        return command_record(state.commands[name])
    if kind == "deadline" and name in state.deadlines:
        return Record(key, dict(state.deadlines[name]))
    return Record(key, dict(state.settings[key])) if key in state.settings else tombstone(key)


# --- what records mean together -------------------------------------------------------------------------------------


def config_version(connector: Connector) -> int:
    return connector.config_version or connector.version


def task_set_of(state: ClusterState, name: str) -> TaskSet | None:
    """The connector's task set; None when there is none of its incarnation."""
    connector, tasks = state.connectors.get(name), state.task_sets.get(name)
    if connector is None or tasks is None or tasks.incarnation != connector.incarnation:
        return None
    return tasks


def is_wanted(state: ClusterState, entry: AssignedTask) -> bool:
    """The entry belongs to the connector's present task set and the connector is not stopped."""
    tasks = task_set_of(state, entry.connector)
    if tasks is None or tasks.incarnation != entry.incarnation:
        return False
    return (
        state.connectors[entry.connector].target_state != "STOPPED"
        and entry.task < len(tasks.tasks)
        and entry.task_epoch >= tasks.task_epoch
    )
