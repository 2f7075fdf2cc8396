"""The fold of the config log into ClusterState, and what its records mean together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from cdcworker.coordinator.api import Record
from cdcworker.coordinator.model import (
    AssignedTask,
    ClusterState,
    JsonObject,
    Leader,
    TaskSet,
)
from cdcworker.coordinator.records import (
    KINDS,
    LEADER,
    UNREADABLE,
    assignment_record,
    command_record,
    config_version,
    connector_record,
    deadline_record,
    fenced_record,
    job_record,
    journal_record,
    leader_record,
    parse_leader,
    task_set_record,
    tombstone,
)

__all__ = [
    "FORMAT",
    "LEADER",
    "TASK_EPOCH_BITS",
    "Draft",
    "assignment_record",
    "command_record",
    "config_version",
    "connector_record",
    "current_record",
    "deadline_record",
    "fenced_record",
    "fold",
    "fold_all",
    "fold_taken",
    "is_wanted",
    "journal_record",
    "leader_record",
    "record_epoch",
    "task_epoch",
    "task_set_of",
    "task_set_record",
    "tombstone",
]

logger = logging.getLogger(__name__)

FORMAT = "1"
TASK_EPOCH_BITS = 20
EPOCH_DIGITS_MAX = 18
Parsed = TypeVar("Parsed")


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


class Draft:
    """A state that grows record by record in constant time each. `state` shares its maps: read it, do not keep it."""

    def __init__(self, state: ClusterState) -> None:
        self._work = _fold_of(state)
        self.state = state

    def add(self, record: Record) -> None:
        _take(self._work, record)
        self.state = self._work.result()


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
    work = _fold_of(state)
    taken = [record for record in records if _take(work, record)]
    return work.result(), taken


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
        leader = _parse(_leader, "", record) if record.value is not None else None
        # What a claim is compared by counts, whatever its record says besides.
        work.leader = replace(leader, epoch=epoch or leader.epoch) if leader else None
        return True
    kind, _, name = record.key.partition("/")
    known = KINDS.get(kind) if name else None
    value = _parse(known[1], name, record) if known and record.value is not None else None
    if known:
        work.put(known[0], name, value)
    work.put("settings", record.key, record.value if value is None else None)
    return True


def _leader(_name: str, value: JsonObject) -> Leader:
    return parse_leader(value)


def _parse(parser: Callable[[str, JsonObject], Parsed], name: str, record: Record) -> Parsed | None:
    """The typed value; None for one that this version cannot read: it is kept as it is, like an unknown kind."""
    try:
        return parser(name, record.value or {})
    except UNREADABLE as exc:
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
    return int(text) if text.isascii() and text.isdigit() and len(text) <= EPOCH_DIGITS_MAX else 0


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
    if kind == "job" and name in state.jobs:
        return job_record(state.jobs[name])
    if kind == "deadline" and name in state.deadlines:
        return deadline_record(name, state.deadlines[name])
    if kind == "fenced" and name in state.fenced:
        return fenced_record(name, state.fenced[name])
    if kind == "journal" and name in state.journal:
        return replace(journal_record(state.journal[name]), key=key)
    return Record(key, dict(state.settings[key])) if key in state.settings else tombstone(key)


# --- what records mean together -------------------------------------------------------------------------------------


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
