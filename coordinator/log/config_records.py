"""The records of the config log: their values as JSON and back. Fields of newer versions are kept in `extra`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.log.record_fields import (
    DELAY_MS_MAX,
    flag,
    items,
    members,
    task_number,
    text,
    texts,
    wall_ms,
    whole,
)
from cdcworker.coordinator.model import (
    AssignedTask,
    Assignment,
    Command,
    Connection,
    Connector,
    FencedTasks,
    Job,
    JournalEntry,
    JsonObject,
    Leader,
    ReturnDeadline,
    TaskMove,
    TaskSet,
)

LEADER = "leader"
"""The key of the leader record."""
TARGET_STATES = ("RUNNING", "PAUSED", "STOPPED")
CONNECTOR_KINDS = ("source", "sink")
REFUSED_VERSION_MAX = 1 << 53
JOURNAL_SLOTS = 256
"""The size of the ring of journal records."""


def tombstone(key: str) -> LogRecord:
    """Returns the record that deletes a key."""
    return LogRecord(key, None)


def config_version(connector: Connector) -> int:
    """Returns the version of the connector's config; records of old versions lack it."""
    return connector.config_version or connector.version


def _extra(value: JsonObject, known: frozenset[str]) -> dict[str, Any]:
    return {name: item for name, item in value.items() if name not in known}


def _texts(value: Any) -> dict[str, str]:
    """Returns a config with text values: other values become their JSON text, and null counts as missing."""
    return {
        str(name): item if isinstance(item, str) else json.dumps(item)
        for name, item in members(value).items()
        if item is not None
    }


def _one_of(value: Any, words: tuple[Any, ...]) -> Any:
    if value not in words:
        raise ValueError("not one of the known words")
    return value


def _prefixes(value: Any) -> tuple[str, ...]:
    """Returns a bound of topics. TypeError for an empty beginning, which would be no bound."""
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) and item for item in value):
        raise TypeError("not a list of beginnings")
    return tuple(value)


def error_of(value: Any) -> JsonObject | None:
    """Returns an error as a JSON object; None for anything else."""
    return value if isinstance(value, dict) else None


# --- values ---------------------------------------------------------------------------------------------------------
# Missing fields have defaults, so that versions can share a log.

_LEADER = frozenset({"epoch", "worker_id", "boot_id", "url", "hint", "member"})
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
        "topic_prefixes",
    }
)
_CONNECTION = frozenset({"incarnation", "version", "config", "created", "updated"})
_TASK_SET = frozenset({"incarnation", "config_version", "task_epoch", "tasks", "error", "connection"})
_AT = "@"
"""Stands between the connection under which a connector was split and the task epoch of that set."""
_ASSIGNMENT = frozenset({"boot_id", "tasks", "revoke", "reason", "causes"})
_COMMAND = frozenset({"kind", "scope", "expires"})
_DEADLINE = frozenset({"boot_id", "cause", "delay_ms", "tasks"})
_FENCED = frozenset({"incarnation", "task_epoch", "count", "pending"})
_JOB = frozenset({"incarnation", "kind", "spec", "wanted", "outcome", "created", "updated", "own"})
_JOURNAL = frozenset({"seq", "ts", "cause", "moves"})


def parse_leader(value: JsonObject) -> Leader:
    """Parses the value of the `leader` record. Raises one of `UNREADABLE` for a malformed one."""
    return Leader(
        epoch=whole(value["epoch"]),
        worker_id=text(value["worker_id"]),
        boot_id=text(value["boot_id"]),
        url=text(value.get("url", "")),
        hint=whole(value.get("hint", 0), least=-1),
        member=text(value.get("member", "")),
        extra=_extra(value, _LEADER),
    )


def _connector(name: str, value: JsonObject) -> Connector:
    version = whole(value["version"])
    return Connector(
        name=name,
        incarnation=text(value["incarnation"]),
        version=version,
        config=_texts(value["config"]),
        target_state=_one_of(value["target_state"], TARGET_STATES),
        kind=_one_of(value.get("kind", "source"), CONNECTOR_KINDS),
        labels=texts(value.get("labels", {})),
        created_ms=wall_ms(value.get("created", 0)),
        updated_ms=wall_ms(value.get("updated", 0)),
        config_version=whole(value.get("config_version", version)),
        topic_prefixes=_prefixes(value.get("topic_prefixes", ())),
        extra=_extra(value, _CONNECTOR),
    )


def _connection(name: str, value: JsonObject) -> Connection:
    return Connection(
        name=name,
        incarnation=text(value["incarnation"]),
        version=whole(value["version"]),
        config=_texts(value["config"]),
        created_ms=wall_ms(value.get("created", 0)),
        updated_ms=wall_ms(value.get("updated", 0)),
        extra=_extra(value, _CONNECTION),
    )


def refused_connector(name: str, record: LogRecord, reason: str) -> Connector:
    """Returns what stands for a connector whose record cannot be read: it is there, and it runs nothing.

    It follows from the record alone, so that a log that compaction has thinned folds to the same state.
    """
    value = record.value or {}
    incarnation, version, kind = value.get("incarnation"), value.get("version"), value.get("kind")
    is_version = isinstance(version, int) and not isinstance(version, bool) and 0 < version <= REFUSED_VERSION_MAX
    return Connector(
        name=name,
        incarnation=incarnation if isinstance(incarnation, str) and incarnation else f"refused-{record.offset}",
        version=version if is_version and isinstance(version, int) else 1,
        config={},
        target_state="STOPPED",
        kind="sink" if kind == "sink" else "source",
        refused=reason,
    )


def _task_set(_name: str, value: JsonObject) -> TaskSet:
    task_epoch = whole(value.get("task_epoch", 0))
    connection, _, written = text(value.get("connection", "")).rpartition(_AT)
    return TaskSet(
        incarnation=text(value["incarnation"]),
        config_version=whole(value["config_version"]),
        tasks=tuple(_texts(share) for share in items(value.get("tasks", ()))),
        error=error_of(value.get("error")),
        task_epoch=task_epoch,
        # A leader of a version without connections keeps the member of a set that it has split without any.
        connection=connection if written == str(task_epoch) else "",
        extra=_extra(value, _TASK_SET),
    )


def _entries(value: Any) -> tuple[AssignedTask, ...]:
    entries = (items(entry) for entry in items(value))
    return tuple(AssignedTask(text(c), text(i), task_number(t), whole(e)) for c, i, t, e, *_ in entries)


def _assignment(_worker_id: str, value: JsonObject) -> Assignment:
    return Assignment(
        boot_id=text(value["boot_id"]),
        tasks=_entries(value.get("tasks", ())),
        revoke=_entries(value.get("revoke", ())),
        reason=text(value.get("reason", "")),
        causes=texts(value.get("causes", {})),
        extra=_extra(value, _ASSIGNMENT),
    )


def _command(command_id: str, value: JsonObject) -> Command:
    return Command(
        id=command_id,
        kind=text(value["kind"]),
        scope=members(value.get("scope", {})),
        expires_ms=whole(value.get("expires", 0)),
        extra=_extra(value, _COMMAND),
    )


def _deadline(_name: str, value: JsonObject) -> ReturnDeadline:
    return ReturnDeadline(
        boot_id=text(value["boot_id"]),
        cause=text(value.get("cause", "")),
        delay_ms=whole(value.get("delay_ms", 0), most=DELAY_MS_MAX),
        tasks=_entries(value.get("tasks", ())),
        extra=_extra(value, _DEADLINE),
    )


def _fenced(_name: str, value: JsonObject) -> FencedTasks:
    return FencedTasks(
        count=task_number(value.get("count", 0)),
        pending=tuple(sorted(map(task_number, items(value.get("pending", ()))))),
        incarnation=text(value.get("incarnation", "")),
        task_epoch=whole(value.get("task_epoch", 0)),
        extra=_extra(value, _FENCED),
    )


def _journal(_slot: str, value: JsonObject) -> JournalEntry:
    return JournalEntry(
        seq=whole(value["seq"]),
        ts_ms=wall_ms(value.get("ts", 0)),
        cause=text(value.get("cause", "")),
        moves=tuple(map(_move, items(value.get("moves", ())))),
        extra=_extra(value, _JOURNAL),
    )


def _move(value: Any) -> TaskMove:
    return TaskMove(
        text(value["connector"]),
        task_number(value["task"]),
        text(value.get("from") or ""),
        text(value.get("to") or ""),
        text(value.get("why", "")),
    )


def _job(name: str, value: JsonObject) -> Job:
    connector, _, identity = name.rpartition("/")
    wanted: Any = text(value.get("wanted", "RUNNING"))
    return Job(
        connector=connector,
        id=identity,
        incarnation=text(value["incarnation"]),
        kind=text(value["kind"]),
        spec=members(value.get("spec", {})),
        wanted=wanted if wanted in ("RUNNING", "PAUSED", "CANCELLED") else "PAUSED",
        outcome=error_of(value.get("outcome")),
        created_ms=wall_ms(value.get("created", 0)),
        updated_ms=wall_ms(value.get("updated", 0)),
        own=flag(value.get("own", True)),
        extra=_extra(value, _JOB),
    )


KINDS: Mapping[str, tuple[str, Callable[[str, JsonObject], object]]] = {
    "connector": ("connectors", _connector),
    "connection": ("connections", _connection),
    "tasks": ("task_sets", _task_set),
    "assignment": ("assignments", _assignment),
    "deadline": ("deadlines", _deadline),
    "fenced": ("fenced", _fenced),
    "journal": ("journal", _journal),
    "command": ("commands", _command),
    "job": ("jobs", _job),
}
"""By the first part of a key, the field of ClusterState and the parser. Records of other kinds go into `settings`."""


# --- records --------------------------------------------------------------------------------------------------------


def leader_record(leader: Leader) -> LogRecord:
    """Returns the `leader` record."""
    value = {
        **leader.extra,
        "epoch": leader.epoch,
        "worker_id": leader.worker_id,
        "boot_id": leader.boot_id,
        "url": leader.url,
        "hint": leader.hint,
        "member": leader.member,
    }
    return LogRecord(LEADER, value)


def connector_record(connector: Connector) -> LogRecord:
    """Returns a `connector/<name>` record."""
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
    if connector.topic_prefixes:
        value["topic_prefixes"] = list(connector.topic_prefixes)
    return LogRecord(f"connector/{connector.name}", value)


def connection_record(connection: Connection) -> LogRecord:
    """Returns a `connection/<name>` record."""
    value = {
        **connection.extra,
        "incarnation": connection.incarnation,
        "version": connection.version,
        "config": dict(connection.config),
        "created": connection.created_ms,
        "updated": connection.updated_ms,
    }
    return LogRecord(f"connection/{connection.name}", value)


def task_set_record(name: str, tasks: TaskSet) -> LogRecord:
    """Returns a `tasks/<name>` record."""
    value: JsonObject = {
        **tasks.extra,
        "incarnation": tasks.incarnation,
        "config_version": tasks.config_version,
        "task_epoch": tasks.task_epoch,
        "tasks": [dict(share) for share in tasks.tasks],
    }
    if tasks.error is not None:
        value["error"] = tasks.error
    if tasks.connection:
        value["connection"] = f"{tasks.connection}{_AT}{tasks.task_epoch}"
    return LogRecord(f"tasks/{name}", value)


def assignment_record(worker_id: str, assignment: Assignment) -> LogRecord:
    """Returns an `assignment/<worker_id>` record."""
    value: JsonObject = {
        **assignment.extra,
        "boot_id": assignment.boot_id,
        "tasks": [list(entry) for entry in assignment.tasks],
        "revoke": [list(entry) for entry in assignment.revoke],
        "reason": assignment.reason,
    }
    if assignment.causes:
        value["causes"] = dict(assignment.causes)
    return LogRecord(f"assignment/{worker_id}", value)


def command_record(command: Command) -> LogRecord:
    """Returns a `command/<id>` record."""
    value = {**command.extra, "kind": command.kind, "scope": command.scope, "expires": command.expires_ms}
    return LogRecord(f"command/{command.id}", value)


def job_key(connector: str, identity: str) -> str:
    """Returns the key of a job's record."""
    return f"job/{connector}/{identity}"


def job_record(job: Job) -> LogRecord:
    """Returns a `job/<connector>/<id>` record."""
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
    return LogRecord(job_key(job.connector, job.id), value)


def deadline_record(name: str, deadline: ReturnDeadline) -> LogRecord:
    """Returns a `deadline/<name>` record; the name is `worker/<id>`."""
    value = {
        **deadline.extra,
        "boot_id": deadline.boot_id,
        "cause": deadline.cause,
        "delay_ms": deadline.delay_ms,
        "tasks": [list(entry) for entry in deadline.tasks],
    }
    return LogRecord(f"deadline/{name}", value)


def fenced_record(name: str, fenced: FencedTasks) -> LogRecord:
    """Returns a `fenced/<name>` record."""
    value: JsonObject = {
        **fenced.extra,
        "incarnation": fenced.incarnation,
        "task_epoch": fenced.task_epoch,
        "count": fenced.count,
    }
    if fenced.pending:
        value["pending"] = list(fenced.pending)
    return LogRecord(f"fenced/{name}", value)


def journal_record(entry: JournalEntry) -> LogRecord:
    """Returns a `journal/<slot>` record."""
    moves = [
        {"connector": m.connector, "task": m.task, "from": m.source or None, "to": m.target or None, "why": m.why}
        for m in entry.moves
    ]
    value = {**entry.extra, "seq": entry.seq, "ts": entry.ts_ms, "cause": entry.cause, "moves": moves}
    return LogRecord(f"journal/{entry.seq % JOURNAL_SLOTS}", value)
