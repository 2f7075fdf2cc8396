"""Versions that share a cluster: what each can read, and who may not take part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from cdcworker.coordinator.errors import PEERS_TOO_OLD, PROTOCOL_TOO_OLD
from cdcworker.coordinator.model import PROTOCOL, Presence
from cdcworker.schemas.errors import CdcError

SINCE: Mapping[str, int] = {"deadline": 2, "fenced": 2, "journal": 2}
"""Kinds of records that older versions keep, but do not act on."""
TURNS_SINCE: Final = 3
"""Older versions know one data producer of a source task only: they would not fence the other."""


def lowest(workers: Iterable[Presence]) -> int:
    """What everybody who is there can read."""
    return min((presence.protocol for presence in workers), default=PROTOCOL)


def may_write(kind: str, workers: Iterable[Presence]) -> bool:
    """Whether all who are there, one of whom may lead next, act on records of this kind."""
    return lowest(workers) >= SINCE.get(kind, 1)


def may_take_turns(workers: Iterable[Presence]) -> bool:
    """Whether all who are there, one of whom may own a task next, fence both of its data producers."""
    return lowest(workers) >= TURNS_SINCE


def clash(me: Presence, other: Presence) -> CdcError | None:
    """Why these two cannot share a cluster; the one that starts gives way."""
    where: dict[str, str | int] = {"worker": other.worker_id, "version": other.version}
    if me.protocol < other.floor:
        text = f"protocol {me.protocol} is below {other.floor}, which worker {other.worker_id} demands"
        return CdcError(PROTOCOL_TOO_OLD, text, where=where)
    if other.protocol < me.floor:
        text = f"worker {other.worker_id} speaks protocol {other.protocol}, this version needs {me.floor}"
        return CdcError(PEERS_TOO_OLD, text, where=where)
    return None
