"""Errors for requests that the leader has refused: outcomes of the cluster's core as answers of Kafka Connect."""

from __future__ import annotations

from cdcworker.coordinator.errors import RECORD_TOO_LARGE
from cdcworker.coordinator.model import ChangeJob, DeleteConnection, PutConnection, PutJob, Reply, Restart
from cdcworker.coordinator.model import Request as Command
from cdcworker.worker.http import errors as e
from cdcworker.worker.rest.context import ApiContext


def subject(command: Command) -> str:
    """Returns the name of the connector, or of the record, that a command changes."""
    return command.connector if isinstance(command, Restart | PutJob | ChangeJob) else command.name


def kind_of(command: Command) -> str:
    """Returns what a command changes, as a sentence about it begins."""
    return "Connection" if isinstance(command, PutConnection | DeleteConnection) else "Connector"


def refusal(api: ApiContext, reply: Reply, name: str, missing: str, kind: str = "Connector") -> e.RestError:
    """Returns the error for a reply that is not `ok`. `name` is the connector's; `missing` is the text for not found."""
    if reply.outcome == "no_leader":
        return e.no_leader()
    if reply.outcome == "exists":
        return e.RestError(409, f"Connector {name} already exists", e.EXISTS, headers={"X-CDC-Reason": "exists"})
    if reply.outcome == "not_found":
        return e.not_found(missing)
    if reply.outcome == "version_mismatch":
        message = f"{kind} {name} is at another version" + (f": {reply.version}" if reply.version else "")
        return e.RestError(412, message, e.VERSION_MISMATCH)
    if reply.outcome == "too_large":
        return e.RestError(413, f"{kind} {name} is too large: {reply.detail}", RECORD_TOO_LARGE)
    if reply.outcome == "timeout":
        return api.timed_out()
    return e.RestError(409, reply.detail or e.CONFLICTING_OPERATION, e.CONFLICT, headers={"X-CDC-Reason": "state"})
