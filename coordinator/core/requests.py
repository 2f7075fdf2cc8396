"""The leader's decisions about requests: pure functions from the cluster state and a request to a reply and records."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.core import jobs
from cdcworker.coordinator.core.herd_state import COMMAND_TTL_S
from cdcworker.coordinator.log.config_fold import (
    command_record,
    config_version,
    connection_record,
    connector_record,
    task_set_of,
    tombstone,
)
from cdcworker.coordinator.log.connections import connection_name, users
from cdcworker.coordinator.model import (
    ChangeJob,
    ClusterState,
    Command,
    Connection,
    Connector,
    DeleteConnection,
    DeleteConnector,
    PutConnection,
    PutConnector,
    PutJob,
    PutSetting,
    Reply,
    Request,
    Restart,
)

_NAMESPACE = uuid.UUID("6f3a1d0e-5b0c-5c55-9a54-0f6f6d1a8c11")
"""Incarnations derive from request ids: they are as unique, and the same when a decision is made again."""

_REFUSED = "the connector's record cannot be read: give it its config again, or delete it"

MADE_BY = "made_by"
"""The member of a connector's record that holds the idempotency key of the request that created it."""


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request with all that its decision may depend on besides the cluster state."""

    id: str
    request: Request
    wall_ms: int
    command_ttl_s: float = COMMAND_TTL_S
    task_epoch: int = 0
    """The last task epoch given so far; later ones belong to starts after this request."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The records to write for a request, and the reply that is given once they are read back."""

    reply: Reply
    records: tuple[LogRecord, ...] = ()


def decide(state: ClusterState, pending: PendingRequest) -> Decision:
    """Decides one request on the state that earlier requests of the same write have led to."""
    request = pending.request
    if isinstance(request, PutSetting):
        return Decision(Reply("ok"), (LogRecord(request.name, request.value),))
    if isinstance(request, PutJob):
        return Decision(*jobs.put(state, request, pending.id, pending.wall_ms))
    if isinstance(request, ChangeJob):
        return Decision(*jobs.change(state, request, pending.wall_ms))
    if isinstance(request, PutConnection):
        return _put_connection(state.connections.get(request.name), request, pending)
    if isinstance(request, DeleteConnection):
        return _delete_connection(state, request)
    connector = state.connectors.get(request.connector if isinstance(request, Restart) else request.name)
    if isinstance(request, PutConnector):
        # A connection that is deleted at the same moment is not named from then on.
        named = connection_name(request.config or {})
        if named and named not in state.connections:
            return Decision(Reply("conflict", detail=f"there is no connection {named}"))
        return _put(connector, request, pending)
    if isinstance(request, DeleteConnector):
        return _delete(state, connector, request)
    return _restart(state, connector, request, pending)


def _put(old: Connector | None, request: PutConnector, pending: PendingRequest) -> Decision:
    if old is None:
        return _create(request, pending)
    if request.create_only:
        return Decision(Reply("exists", version=old.version))
    if request.if_version is not None and request.if_version != old.version:
        return Decision(Reply("version_mismatch", version=old.version))
    if old.refused and not request.config:
        return Decision(Reply("conflict", version=old.version, detail=_REFUSED))
    new = replace(
        old,
        refused="",
        config=dict(old.config if request.config is None else request.config),
        kind=request.kind or old.kind,
        target_state=request.target_state or old.target_state,
        labels=dict(old.labels if request.labels is None else request.labels),
        config_version=config_version(old),
        topic_prefixes=old.topic_prefixes if request.topic_prefixes is None else request.topic_prefixes,
    )
    if new == replace(old, config=dict(old.config), labels=dict(old.labels), config_version=config_version(old)):
        return Decision(Reply("ok", version=old.version))
    version = old.version + 1
    # Tasks know the bound of their topics from their start.
    same_bound = new.topic_prefixes == old.topic_prefixes
    same_config = _is_same_config(new.config, old.config) and new.kind == old.kind and same_bound
    new = replace(
        new,
        version=version,
        config_version=new.config_version if same_config else version,
        updated_ms=pending.wall_ms,
    )
    return Decision(Reply("ok", version=version), (connector_record(new),))


def _is_same_config(left: Mapping[str, str], right: Mapping[str, str]) -> bool:
    return dict(left) == dict(right)


def _create(request: PutConnector, pending: PendingRequest) -> Decision:
    if request.must_exist or request.config is None:
        return Decision(Reply("not_found"))
    if request.if_version is not None:
        return Decision(Reply("version_mismatch"))
    if request.kind is None:
        return Decision(Reply("conflict", detail="a new connector needs its kind"))
    new = Connector(
        name=request.name,
        incarnation=str(uuid.uuid5(_NAMESPACE, pending.id)),
        version=1,
        config=dict(request.config),
        target_state=request.target_state or "RUNNING",
        kind=request.kind,
        labels=dict(request.labels or {}),
        created_ms=pending.wall_ms,
        updated_ms=pending.wall_ms,
        config_version=1,
        topic_prefixes=request.topic_prefixes or (),
        extra={MADE_BY: request.mark} if request.mark else {},
    )
    return Decision(Reply("ok", created=True, version=1), (connector_record(new),))


def _delete(state: ClusterState, old: Connector | None, request: DeleteConnector) -> Decision:
    if old is None:
        return Decision(Reply("not_found"))
    if request.if_version is not None and request.if_version != old.version:
        return Decision(Reply("version_mismatch", version=old.version))
    records = (tombstone(f"connector/{old.name}"), tombstone(f"tasks/{old.name}"), *jobs.tombstones_of(state, old.name))
    return Decision(Reply("ok", version=old.version), records)


def _put_connection(old: Connection | None, request: PutConnection, pending: PendingRequest) -> Decision:
    if old is None and request.must_exist:
        return Decision(Reply("not_found"))
    version = old.version if old is not None else 0
    if request.if_version not in (None, version):
        return Decision(Reply("version_mismatch", version=version))
    if old is None:
        incarnation = str(uuid.uuid5(_NAMESPACE, pending.id))
        new = Connection(request.name, incarnation, 1, dict(request.config), pending.wall_ms, pending.wall_ms)
        return Decision(Reply("ok", created=True, version=1), (connection_record(new),))
    if _is_same_config(old.config, request.config):
        return Decision(Reply("ok", version=old.version))
    new = replace(old, version=old.version + 1, config=dict(request.config), updated_ms=pending.wall_ms)
    return Decision(Reply("ok", version=new.version), (connection_record(new),))


def _delete_connection(state: ClusterState, request: DeleteConnection) -> Decision:
    old = state.connections.get(request.name)
    if old is None:
        return Decision(Reply("not_found"))
    if request.if_version is not None and request.if_version != old.version:
        return Decision(Reply("version_mismatch", version=old.version))
    if count := len(users(state, request.name)):
        return Decision(Reply("conflict", version=old.version, detail=f"{count} connectors use the connection"))
    return Decision(Reply("ok", version=old.version), (tombstone(f"connection/{request.name}"),))


def _restart(state: ClusterState, old: Connector | None, request: Restart, pending: PendingRequest) -> Decision:
    if old is None:
        return Decision(Reply("not_found"))
    if old.target_state == "STOPPED":
        return Decision(Reply("conflict", version=old.version, detail="the connector is stopped"))
    tasks = task_set_of(state, old.name)
    if request.task is not None and (tasks is None or not 0 <= request.task < len(tasks.tasks)):
        return Decision(Reply("not_found", version=old.version, detail="no such task"))
    records: list[LogRecord] = []
    if tasks is not None and tasks.error is not None and not tasks.tasks:
        records.append(tombstone(f"tasks/{old.name}"))  # makes the leader split the connector again
    if request.include_tasks or request.task is not None:
        scope = {
            "connector": old.name,
            "incarnation": old.incarnation,
            "task": request.task,
            "only_failed": request.only_failed,
            "after": pending.task_epoch,
        }
        expires = pending.wall_ms + round(pending.command_ttl_s * 1000) + _return_delay_ms(state, old.name)
        records.append(command_record(Command(pending.id, "restart", scope, expires)))
    return Decision(Reply("ok", version=old.version), tuple(records))


def _return_delay_ms(state: ClusterState, name: str) -> int:
    """Returns how long tasks of this connector may wait for their worker; a command to them has to live longer."""
    waits = (d.delay_ms for d in state.deadlines.values() if any(entry.connector == name for entry in d.tasks))
    return max(waits, default=0)
