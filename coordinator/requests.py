"""What a request changes: a pure decision over the folded state, made by the leader only."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cdcworker.coordinator import jobs
from cdcworker.coordinator.api import Record
from cdcworker.coordinator.model import (
    ChangeJob,
    ClusterState,
    Command,
    Connector,
    DeleteConnector,
    PutConnector,
    PutJob,
    PutSetting,
    Reply,
    Request,
    Restart,
)
from cdcworker.coordinator.state import command_record, config_version, connector_record, task_set_of, tombstone

_NAMESPACE = uuid.UUID("6f3a1d0e-5b0c-5c55-9a54-0f6f6d1a8c11")
"""Incarnations derive from request ids: unique as those, and the same when a decision is made again."""


MADE_BY = "made_by"
"""Member of a connector's record: the mark of the request that made it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request with what the decision may know besides the state."""

    id: str
    request: Request
    wall_ms: int
    command_ttl_s: float = 60.0
    task_epoch: int = 0
    """The last one given: later ones belong to starts that come after this request."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The reply once the records are read back; no records: the reply holds at once."""

    reply: Reply
    records: tuple[Record, ...] = ()


def decide(state: ClusterState, asked: Asked) -> Decision:
    request = asked.request
    if isinstance(request, PutSetting):
        return Decision(Reply("ok"), (Record(request.name, request.value),))
    if isinstance(request, PutJob):
        return Decision(*jobs.put(state, request, asked.id, asked.wall_ms))
    if isinstance(request, ChangeJob):
        return Decision(*jobs.change(state, request, asked.wall_ms))
    connector = state.connectors.get(request.connector if isinstance(request, Restart) else request.name)
    if isinstance(request, PutConnector):
        return _put(connector, request, asked)
    if isinstance(request, DeleteConnector):
        return _delete(state, connector, request)
    return _restart(state, connector, request, asked)


def _put(old: Connector | None, request: PutConnector, asked: Asked) -> Decision:
    if old is None:
        return _create(request, asked)
    if request.create_only:
        return Decision(Reply("exists", version=old.version))
    if request.if_version is not None and request.if_version != old.version:
        return Decision(Reply("version_mismatch", version=old.version))
    new = replace(
        old,
        config=dict(old.config if request.config is None else request.config),
        kind=request.kind or old.kind,
        target_state=request.target_state or old.target_state,
        labels=dict(old.labels if request.labels is None else request.labels),
        config_version=config_version(old),
    )
    if new == replace(old, config=dict(old.config), labels=dict(old.labels), config_version=config_version(old)):
        return Decision(Reply("ok", version=old.version))
    version = old.version + 1
    same_config = _same(new.config, old.config) and new.kind == old.kind
    new = replace(
        new,
        version=version,
        config_version=new.config_version if same_config else version,
        updated_ms=asked.wall_ms,
    )
    return Decision(Reply("ok", version=version), (connector_record(new),))


def _same(left: Mapping[str, str], right: Mapping[str, str]) -> bool:
    return dict(left) == dict(right)


def _create(request: PutConnector, asked: Asked) -> Decision:
    if request.must_exist or request.config is None:
        return Decision(Reply("not_found"))
    if request.if_version is not None:
        return Decision(Reply("version_mismatch"))
    if request.kind is None:
        return Decision(Reply("conflict", detail="a new connector needs its kind"))
    new = Connector(
        name=request.name,
        incarnation=str(uuid.uuid5(_NAMESPACE, asked.id)),
        version=1,
        config=dict(request.config),
        target_state=request.target_state or "RUNNING",
        kind=request.kind,
        labels=dict(request.labels or {}),
        created_ms=asked.wall_ms,
        updated_ms=asked.wall_ms,
        config_version=1,
        extra={MADE_BY: request.mark} if request.mark else {},
    )
    return Decision(Reply("ok", created=True, version=1), (connector_record(new),))


def _delete(state: ClusterState, old: Connector | None, request: DeleteConnector) -> Decision:
    if old is None:
        return Decision(Reply("not_found"))
    if request.if_version is not None and request.if_version != old.version:
        return Decision(Reply("version_mismatch", version=old.version))
    records = (tombstone(f"connector/{old.name}"), tombstone(f"tasks/{old.name}"), *jobs.gone(state, old.name))
    return Decision(Reply("ok", version=old.version), records)


def _restart(state: ClusterState, old: Connector | None, request: Restart, asked: Asked) -> Decision:
    if old is None:
        return Decision(Reply("not_found"))
    if old.target_state == "STOPPED":
        return Decision(Reply("conflict", version=old.version, detail="the connector is stopped"))
    tasks = task_set_of(state, old.name)
    if request.task is not None and (tasks is None or not 0 <= request.task < len(tasks.tasks)):
        return Decision(Reply("not_found", version=old.version, detail="no such task"))
    records: list[Record] = []
    if tasks is not None and tasks.error is not None and not tasks.tasks:
        records.append(tombstone(f"tasks/{old.name}"))  # makes the leader split it again
    if request.include_tasks or request.task is not None:
        scope = {
            "connector": old.name,
            "incarnation": old.incarnation,
            "task": request.task,
            "only_failed": request.only_failed,
            "after": asked.task_epoch,
        }
        expires = asked.wall_ms + round(asked.command_ttl_s * 1000) + _waits_ms(state, old.name)
        records.append(command_record(Command(asked.id, "restart", scope, expires)))
    return Decision(Reply("ok", version=old.version), tuple(records))


def _waits_ms(state: ClusterState, name: str) -> int:
    """How long tasks of this connector may wait for their worker: a command to them is not forgotten before."""
    waits = (d.delay_ms for d in state.deadlines.values() if any(entry.connector == name for entry in d.tasks))
    return max(waits, default=0)
