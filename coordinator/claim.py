"""Whose log this is, and which claim may lead where no broker checks a proof: pure rules over the folded log.

A lock cannot be checked by the log's broker, so with ZooKeeper the claim itself is the check. After every
`init_transactions` the log is read to its end; a lock node older than a claim that stands there never leads. Else the
claim is written, in a transaction of its own under a key of its own, and only when it was read back as the newest do
decisions follow. Whoever wakes from a pause has to open a new writer, hence reads the newer claim before it writes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from cdcworker.coordinator.api import Record, Term
from cdcworker.coordinator.errors import ENSEMBLE_CHANGED, OTHER_CLUSTER
from cdcworker.coordinator.model import ClusterState, JsonObject, Presence
from cdcworker.schemas.errors import CdcError

CLUSTER = "setting/cluster"
CLAIM = "claim/"
_DIGITS = 12
_HINT_DIGITS_MAX = 19


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes a cluster this one and no other; recorded in its log by its first leader."""

    kafka: str
    group: str
    topics: tuple[str, ...]
    backend: str
    ensemble: str = ""

    @property
    def fingerprint(self) -> str:
        """What an operator names to say that a log may go over to this identity."""
        return _digest(asdict(self))

    @property
    def flag(self) -> str:
        """The same for all workers that may share a group: what they show each other before they share a log."""
        return _digest([self.group, self.topics, self.backend])


def _digest(content: object) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def identity_of(value: JsonObject | None) -> Identity | None:
    """The identity in a `setting/cluster` record; None for none and for one that this version cannot read."""
    if value is None:
        return None
    try:
        return Identity(
            kafka=str(value["kafka"]),
            group=str(value["group"]),
            topics=tuple(map(str, value["topics"])),
            backend=str(value["backend"]),
            ensemble=str(value.get("ensemble", "")),
        )
    except (KeyError, TypeError):
        return None


def refused(known: Identity | None, mine: Identity | None, accepted: str = "") -> CdcError | None:
    """Why a worker of this identity must keep away from a log of that one; None when it may use it."""
    if known is None or mine is None or known == mine or mine.fingerprint == accepted:
        return None
    accept = f"coordination.accept={mine.fingerprint}"
    if replace(known, ensemble=mine.ensemble) == mine:
        message = f"claims are numbered by ensemble {known.ensemble or '(none)'}, this one is {mine.ensemble}"
        hint = f"Check zookeeper.connect. If the ensemble was rebuilt on purpose, start workers with {accept}."
        return CdcError(ENSEMBLE_CHANGED, message, where={"group.id": mine.group}, hint=hint)
    differing = [
        name for name in ("kafka", "group", "topics", "backend") if getattr(known, name) != getattr(mine, name)
    ]
    message = "the config log belongs to another cluster: " + "; ".join(
        f"{name} is {_shown(getattr(mine, name))} here and {_shown(getattr(known, name))} there" for name in differing
    )
    hint = f"Give this cluster a group.id of its own. If it moved, stop its workers and start them with {accept}."
    return CdcError(OTHER_CLUSTER, message, where={"group.id": mine.group}, hint=hint)


def _shown(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


# --- claims ---------------------------------------------------------------------------------------------------------


def obstacle(state: ClusterState, term: Term, mine: Identity | None, accepted: str = "") -> str | None:
    """Why this term cannot lead, as far as the log says; None when nothing speaks against it."""
    known = identity_of(state.settings.get(CLUSTER))
    error = refused(known, mine and replace(mine, ensemble=term.ensemble), accepted)
    if error is not None:
        return f"{error} {error.hint}"
    newest = newest_claim(state, term.ensemble)
    if needs_claim(term) and newest > term.hint:
        return f"lock node {term.hint} is older than claim {newest}: void for ever"
    return None


def needs_claim(term: Term) -> bool:
    """No broker checks this term: its claim must stand in the log before any decision."""
    return term.proof is None


def newest_claim(state: ClusterState, ensemble: str) -> int:
    """The highest czxid that ever claimed by this ensemble's count."""
    return max((hint for hint, value in _claims(state) if value.get("ensemble") == ensemble), default=-1)


def claim_record(term: Term, epoch: int, me: Presence) -> Record:
    value = {"ensemble": term.ensemble, "epoch": epoch, "worker_id": me.worker_id, "boot_id": me.boot_id}
    return Record(f"{CLAIM}{term.hint}", value)


def is_mine(state: ClusterState, term: Term, epoch: int, me: Presence) -> bool:
    """The claim of this epoch was read back and none is newer."""
    value = state.settings.get(f"{CLAIM}{term.hint}", {})
    stands = (value.get("ensemble"), value.get("epoch"), value.get("boot_id")) == (term.ensemble, epoch, me.boot_id)
    return stands and newest_claim(state, term.ensemble) == term.hint


def records_of_lead(state: ClusterState, term: Term, mine: Identity | None) -> Iterator[Record]:
    """What a new leader writes besides its own record: whose log this is, and the end of older claims."""
    if mine is not None:
        mine = replace(mine, ensemble=term.ensemble)
        if identity_of(state.settings.get(CLUSTER)) != mine:
            yield Record(CLUSTER, {**state.settings.get(CLUSTER, {}), **asdict(mine), "topics": list(mine.topics)})
    for hint, value in sorted(_claims(state), key=lambda claim: claim[0]):
        if value.get("ensemble") != term.ensemble or hint < term.hint:
            yield Record(f"{CLAIM}{hint}", None)


def _claims(state: ClusterState) -> Iterator[tuple[int, JsonObject]]:
    for key, value in state.settings.items():
        hint = key.removeprefix(CLAIM)
        if hint != key and hint.isascii() and hint.isdigit() and len(hint) <= _HINT_DIGITS_MAX:
            yield int(hint), value
