"""Rules for workers of different versions in one cluster: which records may be written, and who may join."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from cdcworker.coordinator.errors import PEERS_TOO_OLD, PROTOCOL_TOO_OLD
from cdcworker.coordinator.model import PROTOCOL, Presence
from cdcworker.schemas.errors import CdcError

SINCE: Mapping[str, int] = {"deadline": 2, "fenced": 2, "journal": 2, "connection": 5}
"""The lowest protocol that acts on each kind of record; older versions keep such records but ignore them."""
ALTERNATING_SINCE: Final = 3
"""The lowest protocol whose workers fence both data producers of a source task; older ones know only one."""
RECEIVER_SIGNED_SINCE: Final = 4
"""The lowest protocol whose workers sign requests to each other for one receiver and with their headers."""


def lowest_protocol(workers: Iterable[Presence]) -> int:
    """Returns the lowest protocol of these workers: the one that all of them can read."""
    return min((presence.protocol for presence in workers), default=PROTOCOL)


def may_write(kind: str, workers: Iterable[Presence]) -> bool:
    """Tells whether all workers, any of which may lead next, act on config log records of this kind."""
    return lowest_protocol(workers) >= SINCE.get(kind, 1)


def may_alternate_producers(workers: Iterable[Presence]) -> bool:
    """Tells whether all workers, any of which may own a task next, fence both of its data producers."""
    return lowest_protocol(workers) >= ALTERNATING_SINCE


def sign_for_their_receiver(workers: Iterable[Presence]) -> bool:
    """Tells whether all workers sign requests for their receiver: then nothing less has to be taken."""
    return lowest_protocol(workers) >= RECEIVER_SIGNED_SINCE


def version_conflict(me: Presence, other: Presence) -> CdcError | None:
    """Returns why this worker cannot join a cluster with the other one, or None. The worker that starts gives way."""
    where: dict[str, str | int] = {"worker": other.worker_id, "version": other.version}
    if me.protocol < other.floor:
        text = f"protocol {me.protocol} is below {other.floor}, which worker {other.worker_id} demands"
        return CdcError(PROTOCOL_TOO_OLD, text, where=where)
    if other.protocol < me.floor:
        text = f"worker {other.worker_id} speaks protocol {other.protocol}, this version needs {me.floor}"
        return CdcError(PEERS_TOO_OLD, text, where=where)
    return None
