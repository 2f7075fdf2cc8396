"""The fold of the config log into a ClusterState, and rules that concern several of its records."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.log.config_records import (
    KINDS,
    LEADER,
    assignment_record,
    command_record,
    config_version,
    connection_record,
    connector_record,
    deadline_record,
    fenced_record,
    job_record,
    journal_record,
    leader_record,
    parse_leader,
    refused_connector,
    task_set_record,
    tombstone,
)
from cdcworker.coordinator.log.record_fields import UNREADABLE
from cdcworker.coordinator.log.setting_records import CHECKS
from cdcworker.coordinator.model import (
    AssignedTask,
    ClusterState,
    JsonObject,
    Leader,
    TaskSet,
)
from cdcworker.schemas.untrusted.refusals import REFUSALS

__all__ = [
    "FORMAT",
    "LEADER",
    "TASK_EPOCH_BITS",
    "ClusterStateDraft",
    "assignment_record",
    "command_record",
    "config_version",
    "connection_record",
    "connector_record",
    "current_record",
    "deadline_record",
    "fenced_record",
    "fold",
    "fold_accepted",
    "fold_all",
    "journal_record",
    "leader_record",
    "record_epoch",
    "should_run",
    "task_epoch",
    "task_set_of",
    "task_set_record",
    "tombstone",
]

FORMAT = "1"
"""The value of the `v` header of all records."""
TASK_EPOCH_BITS = 20
"""The bits of a task epoch below the leader epoch: so many tasks can be started under one leader epoch."""
EPOCH_MAX = (1 << 42) - 2
"""The highest leader epoch of a record: the task epochs of a later one would not fit into a status record."""
EPOCH_DIGITS_MAX = 18
Parsed = TypeVar("Parsed")


def task_epoch(leader_epoch: int, counter: int) -> int:
    """Returns the task epoch for a counter under a leader epoch. Task epochs increase strictly over all leaders."""
    if not 0 <= counter < 1 << TASK_EPOCH_BITS:
        raise ValueError(f"task epoch counter {counter} is out of range")
    return leader_epoch << TASK_EPOCH_BITS | counter


# --- fold -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Fold:
    """A mutable copy of a ClusterState while records are folded; each map is copied when it is first written."""

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

    def result(self) -> ClusterState:
        return replace(
            self.state,
            **self.maps,
            leader=self.leader,
            epoch=self.epoch,
            version=self.version,
            stale_keys=frozenset(self.stale),
        )


def _fold_of(state: ClusterState) -> _Fold:
    return _Fold(state, leader=state.leader, epoch=state.epoch, version=state.version, stale=set(state.stale_keys))


class ClusterStateDraft:
    """A state to which records are added in constant time. `state` shares its maps with later ones: do not keep it."""

    def __init__(self, state: ClusterState) -> None:
        self._work = _fold_of(state)
        self.state = state

    def add(self, record: LogRecord) -> None:
        """Folds one record into `state`."""
        _apply(self._work, record)
        self.state = self._work.result()


def fold(state: ClusterState, record: LogRecord) -> ClusterState:
    """Returns the state after one more record."""
    return fold_all(state, (record,))


def fold_all(state: ClusterState, records: Iterable[LogRecord]) -> ClusterState:
    """Returns the state after these records; the same as folding them one by one."""
    return fold_accepted(state, records)[0]


def fold_accepted(state: ClusterState, records: Iterable[LogRecord]) -> tuple[ClusterState, list[LogRecord]]:
    """Returns the state after these records, and the accepted ones: those that are not of an older leader epoch
    (INV-7).

    Each key is folded on its own, so that a compacted log folds to the same state. Rules that concern several records
    (a task set of another incarnation) are applied by the readers of the state.
    """
    work = _fold_of(state)
    accepted = [record for record in records if _apply(work, record)]
    return work.result(), accepted


def _apply(work: _Fold, record: LogRecord) -> bool:
    if record.offset >= 0:
        work.version = record.offset + 1
    epoch = record_epoch(record)
    if not _is_current(work, record, epoch):  # INV-7
        work.stale.add(record.key)
        return False
    work.epoch = epoch
    work.stale.discard(record.key)
    if record.key == LEADER:
        leader = _parse(_leader, "", record) if record.value is not None else None
        # Claims are compared by the epoch in the header, so that one counts even if the value has another.
        work.leader = replace(leader, epoch=epoch or leader.epoch) if leader else None
        return True
    kind, _, name = record.key.partition("/")
    known = KINDS.get(kind) if name else None
    value = _parse(known[1], name, record) if known and record.value is not None else None
    if kind in CHECKS and record.value is not None:
        _parse(_setting, kind, record)
    if known and value is None and kind == "connector" and record.value is not None:
        # It is neither deleted nor run, and its raw value is kept for a version that can read it.
        work.put(known[0], name, refused_connector(name, record, record.refused or "a field of a wrong type"))
    elif known:
        work.put(known[0], name, value)
    work.put("settings", record.key, record.value if value is None else None)
    return True


def _leader(_name: str, value: JsonObject) -> Leader:
    return parse_leader(value)


def _setting(kind: str, value: JsonObject) -> object:
    return CHECKS[kind](value)


def _parse(parser: Callable[[str, JsonObject], Parsed], name: str, record: LogRecord) -> Parsed | None:
    """Returns the typed value; None for one that this version cannot read, which is kept like a record of unknown
    kind."""
    if record.refused:
        return None
    try:
        return parser(name, record.value or {})
    except UNREADABLE as exc:
        REFUSALS.add("configs", type(exc).__name__, offset=record.offset, key=record.key)
        return None


def _is_current(work: _Fold, record: LogRecord, epoch: int) -> bool:
    """Tells whether a record counts: it is of no older epoch, and no second claim of an epoch by another process."""
    if epoch < work.epoch:
        return False
    if record.key != LEADER or record.value is None or work.leader is None:
        return True
    return epoch > work.leader.epoch or record.value.get("boot_id") == work.leader.boot_id


def record_epoch(record: LogRecord) -> int:
    """Returns the leader epoch of a record; 0 without a readable one."""
    text = record.headers.get("e", "")
    epoch = int(text) if text.isascii() and text.isdigit() and len(text) <= EPOCH_DIGITS_MAX else 0
    return epoch if epoch <= EPOCH_MAX else 0


def current_record(state: ClusterState, key: str) -> LogRecord:
    """Returns the record that the state holds under a key, to be written again; a tombstone if there is none."""
    kind, _, name = key.partition("/")
    if key == LEADER:
        return leader_record(state.leader) if state.leader else tombstone(key)
    if kind == "connector" and name in state.connectors and not state.connectors[name].refused:
        return connector_record(state.connectors[name])
    if kind == "connection" and name in state.connections:
        return connection_record(state.connections[name])
    if kind == "tasks" and name in state.task_sets:
        return task_set_record(name, state.task_sets[name])
    if kind == "assignment" and name in state.assignments:
        return assignment_record(name, state.assignments[name])
    if kind == "command" and name in state.commands:
        return command_record(state.commands[name])
    if kind == "job" and name in state.jobs:
        return job_record(state.jobs[name])
    if kind == "deadline" and name in state.deadlines:
        return deadline_record(name, state.deadlines[name])
    if kind == "fenced" and name in state.fenced:
        return fenced_record(name, state.fenced[name])
    if kind == "journal" and name in state.journal:
        return replace(journal_record(state.journal[name]), key=key)
    return LogRecord(key, dict(state.settings[key])) if key in state.settings else tombstone(key)


# --- rules that concern several records -----------------------------------------------------------------------------


def task_set_of(state: ClusterState, name: str) -> TaskSet | None:
    """Returns the connector's task set; None if there is none of its present incarnation."""
    connector, tasks = state.connectors.get(name), state.task_sets.get(name)
    if connector is None or tasks is None or tasks.incarnation != connector.incarnation:
        return None
    return tasks


def should_run(state: ClusterState, entry: AssignedTask) -> bool:
    """Tells whether an assigned task is to run: it belongs to the present task set, and the connector is not
    stopped."""
    tasks = task_set_of(state, entry.connector)
    if tasks is None or tasks.incarnation != entry.incarnation:
        return False
    return (
        state.connectors[entry.connector].target_state != "STOPPED"
        and entry.task < len(tasks.tasks)
        and entry.task_epoch >= tasks.task_epoch
    )
