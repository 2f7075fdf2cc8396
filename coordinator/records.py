"""The records of the config log: the value of each kind and back. Fields of newer versions are kept, see `extra`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cdcworker.coordinator.api import Record
from cdcworker.coordinator.model import (
    AssignedTask,
    Assignment,
    Command,
    Connector,
    Deadline,
    Fenced,
    Job,
    JournalEntry,
    JsonObject,
    Leader,
    Move,
    TaskSet,
)

LEADER = "leader"
JOURNAL_SLOTS = 256
UNREADABLE = (KeyError, TypeError, ValueError, ArithmeticError, AttributeError)
"""What a value of another form raises when it is taken apart: whoever can write to a log can write any JSON."""


def tombstone(key: str) -> Record:
    return Record(key, None)


def config_version(connector: Connector) -> int:
    return connector.config_version or connector.version


def _extra(value: JsonObject, known: frozenset[str]) -> dict[str, Any]:
    return {name: item for name, item in value.items() if name not in known}


def _texts(value: Any) -> dict[str, str]:
    """A config, whose values are text: what is not is taken as the text that JSON has for it, and null as missing."""
    return {
        str(name): item if isinstance(item, str) else json.dumps(item)
        for name, item in dict(value).items()
        if item is not None
    }


def _word(value: Any) -> Any:
    if not isinstance(value, str):
        raise TypeError("not a word")
    return value


def _number(value: Any) -> int:
    if (number := int(value)) < 0:
        raise ValueError("tasks are numbered from 0")
    return number


def error_of(value: Any) -> JsonObject | None:
    """An error as its code and what belongs to it; None for anything else."""
    return value if isinstance(value, dict) else None


# --- values ---------------------------------------------------------------------------------------------------------
# Missing fields have defaults, so that versions can share a log.

_LEADER = frozenset({"epoch", "worker_id", "boot_id", "url", "hint"})
_CONNECTOR = frozenset(
    {
        "incarnation",
        "version",
        "config_version",
        "config",
        "target_state",
        "kind",
        "labels",
        "created",
        "updated",
    }
)
_TASK_SET = frozenset({"incarnation", "config_version", "task_epoch", "tasks", "error"})
_ASSIGNMENT = frozenset({"boot_id", "tasks", "revoke", "reason", "causes"})
_COMMAND = frozenset({"kind", "scope", "expires"})
_DEADLINE = frozenset({"boot_id", "cause", "delay_ms", "tasks"})
_FENCED = frozenset({"incarnation", "task_epoch", "count", "pending"})
_JOB = frozenset({"incarnation", "kind", "spec", "wanted", "outcome", "created", "updated", "own"})
_JOURNAL = frozenset({"seq", "ts", "cause", "moves"})


def parse_leader(value: JsonObject) -> Leader:
    return Leader(
        epoch=int(value["epoch"]),
        worker_id=str(value["worker_id"]),
        boot_id=str(value["boot_id"]),
        url=str(value.get("url", "")),
        hint=int(value.get("hint", 0)),
        extra=_extra(value, _LEADER),
    )


def _connector(name: str, value: JsonObject) -> Connector:
    version = int(value["version"])
    return Connector(
        name=name,
        incarnation=str(value["incarnation"]),
        version=version,
        config=_texts(value["config"]),
        target_state=_word(value["target_state"]),
        kind=_word(value.get("kind", "source")),
        labels=dict(value.get("labels", {})),
        created_ms=int(value.get("created", 0)),
        updated_ms=int(value.get("updated", 0)),
        config_version=int(value.get("config_version", version)),
        extra=_extra(value, _CONNECTOR),
    )


def _task_set(_name: str, value: JsonObject) -> TaskSet:
    return TaskSet(
        incarnation=str(value["incarnation"]),
        config_version=int(value["config_version"]),
        tasks=tuple(_texts(share) for share in value.get("tasks", ())),
        error=error_of(value.get("error")),
        task_epoch=int(value.get("task_epoch", 0)),
        extra=_extra(value, _TASK_SET),
    )


def _entries(value: Iterable[Any]) -> tuple[AssignedTask, ...]:
    return tuple(AssignedTask(str(c), str(i), _number(t), int(e)) for c, i, t, e, *_ in value)


def _assignment(_worker_id: str, value: JsonObject) -> Assignment:
    return Assignment(
        boot_id=str(value["boot_id"]),
        tasks=_entries(value.get("tasks", ())),
        revoke=_entries(value.get("revoke", ())),
        reason=str(value.get("reason", "")),
        causes=dict(value.get("causes", {})),
        extra=_extra(value, _ASSIGNMENT),
    )


def _command(command_id: str, value: JsonObject) -> Command:
    return Command(
        id=command_id,
        kind=str(value["kind"]),
        scope=dict(value.get("scope", {})),
        expires_ms=int(value.get("expires", 0)),
        extra=_extra(value, _COMMAND),
    )


def _deadline(_what: str, value: JsonObject) -> Deadline:
    return Deadline(
        boot_id=str(value["boot_id"]),
        cause=str(value.get("cause", "")),
        delay_ms=int(value.get("delay_ms", 0)),
        tasks=_entries(value.get("tasks", ())),
        extra=_extra(value, _DEADLINE),
    )


def _fenced(_name: str, value: JsonObject) -> Fenced:
    return Fenced(
        count=int(value.get("count", 0)),
        pending=tuple(sorted(map(_number, value.get("pending", ())))),
        incarnation=str(value.get("incarnation", "")),
        task_epoch=int(value.get("task_epoch", 0)),
        extra=_extra(value, _FENCED),
    )


def _journal(_slot: str, value: JsonObject) -> JournalEntry:
    return JournalEntry(
        seq=int(value["seq"]),
        ts_ms=int(value.get("ts", 0)),
        cause=str(value.get("cause", "")),
        moves=tuple(
            Move(str(m["connector"]), int(m["task"]), m.get("from") or "", m.get("to") or "", str(m.get("why", "")))
            for m in value.get("moves", ())
        ),
        extra=_extra(value, _JOURNAL),
    )


def _job(name: str, value: JsonObject) -> Job:
    connector, _, identity = name.rpartition("/")
    wanted = _word(value.get("wanted", "RUNNING"))
    return Job(
        connector=connector,
        id=identity,
        incarnation=str(value["incarnation"]),
        kind=str(value["kind"]),
        spec=dict(value.get("spec", {})),
        wanted=wanted if wanted in ("RUNNING", "PAUSED", "CANCELLED") else "PAUSED",
        outcome=error_of(value.get("outcome")),
        created_ms=int(value.get("created", 0)),
        updated_ms=int(value.get("updated", 0)),
        own=bool(value.get("own", True)),
        extra=_extra(value, _JOB),
    )


KINDS: Mapping[str, tuple[str, Callable[[str, JsonObject], object]]] = {
    "connector": ("connectors", _connector),
    "tasks": ("task_sets", _task_set),
    "assignment": ("assignments", _assignment),
    "deadline": ("deadlines", _deadline),
    "fenced": ("fenced", _fenced),
    "journal": ("journal", _journal),
    "command": ("commands", _command),
    "job": ("jobs", _job),
}
"""Kind of key → field of ClusterState and parser. Records of other kinds are kept as they are."""


# --- records --------------------------------------------------------------------------------------------------------


def leader_record(leader: Leader) -> Record:
    value = {
        **leader.extra,
        "epoch": leader.epoch,
        "worker_id": leader.worker_id,
        "boot_id": leader.boot_id,
        "url": leader.url,
        "hint": leader.hint,
    }
    return Record(LEADER, value)


def connector_record(connector: Connector) -> Record:
    value = {
        **connector.extra,
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
        **tasks.extra,
        "incarnation": tasks.incarnation,
        "config_version": tasks.config_version,
        "task_epoch": tasks.task_epoch,
        "tasks": [dict(share) for share in tasks.tasks],
    }
    if tasks.error is not None:
        value["error"] = tasks.error
    return Record(f"tasks/{name}", value)


def assignment_record(worker_id: str, assignment: Assignment) -> Record:
    value: JsonObject = {
        **assignment.extra,
        "boot_id": assignment.boot_id,
        "tasks": [list(entry) for entry in assignment.tasks],
        "revoke": [list(entry) for entry in assignment.revoke],
        "reason": assignment.reason,
    }
    if assignment.causes:
        value["causes"] = dict(assignment.causes)
    return Record(f"assignment/{worker_id}", value)


def command_record(command: Command) -> Record:
    value = {**command.extra, "kind": command.kind, "scope": command.scope, "expires": command.expires_ms}
    return Record(f"command/{command.id}", value)


def job_key(connector: str, identity: str) -> str:
    return f"job/{connector}/{identity}"


def job_record(job: Job) -> Record:
    value: JsonObject = {
        **job.extra,
        "incarnation": job.incarnation,
        "kind": job.kind,
        "spec": dict(job.spec),
        "wanted": job.wanted,
        "created": job.created_ms,
        "updated": job.updated_ms,
    }
    if job.outcome is not None:
        value["outcome"] = job.outcome
    if not job.own:
        value["own"] = False
    return Record(job_key(job.connector, job.id), value)


def deadline_record(what: str, deadline: Deadline) -> Record:
    value = {
        **deadline.extra,
        "boot_id": deadline.boot_id,
        "cause": deadline.cause,
        "delay_ms": deadline.delay_ms,
        "tasks": [list(entry) for entry in deadline.tasks],
    }
    return Record(f"deadline/{what}", value)


def fenced_record(name: str, fenced: Fenced) -> Record:
    value: JsonObject = {
        **fenced.extra,
        "incarnation": fenced.incarnation,
        "task_epoch": fenced.task_epoch,
        "count": fenced.count,
    }
    if fenced.pending:
        value["pending"] = list(fenced.pending)
    return Record(f"fenced/{name}", value)


def journal_record(entry: JournalEntry) -> Record:
    moves = [
        {"connector": m.connector, "task": m.task, "from": m.source or None, "to": m.target or None, "why": m.why}
        for m in entry.moves
    ]
    value = {**entry.extra, "seq": entry.seq, "ts": entry.ts_ms, "cause": entry.cause, "moves": moves}
    return Record(f"journal/{entry.seq % JOURNAL_SLOTS}", value)
