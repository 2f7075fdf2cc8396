"""Rules about the config log's owner and its leader: the identity of the cluster, and claims with ZooKeeper (INV-6).

With ZooKeeper no broker checks the leader's proof, so the claim in the log takes its place. After `init_transactions`
the log is read to its end; a lock node older than a claim in the log never leads. Otherwise the claim is written in a
transaction of its own, and the leader decides only after it has read the claim back as the newest. A leader that wakes
up after a pause has been fenced: it has to open a new writer, and so reads the newer claim before it writes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from cdcworker.coordinator.api import LogRecord, Term
from cdcworker.coordinator.errors import ENSEMBLE_CHANGED, OTHER_CLUSTER
from cdcworker.coordinator.model import ClusterState, JsonObject, Presence
from cdcworker.schemas.errors import CdcError

CLUSTER = "setting/cluster"
"""The key of the record that holds the identity of the cluster."""
CLAIM = "claim/"
"""The keys of claims begin with this; the czxid of the lock node follows."""
_DIGITS = 12
_HINT_DIGITS_MAX = 19


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """The identity of a cluster, which its first leader records in the config log."""

    kafka: str
    group: str
    topics: tuple[str, ...]
    backend: str
    ensemble: str = ""

    @property
    def fingerprint(self) -> str:
        """The text by which an operator accepts this identity for an existing log (`coordination.accept`)."""
        return _digest(asdict(self))

    @property
    def flag(self) -> str:
        """A digest of group, topics and backend: workers with different flags must not share a group id."""
        return _digest([self.group, self.topics, self.backend])


def _digest(content: object) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def identity_of(value: JsonObject | None) -> ClusterIdentity | None:
    """Returns the identity in a `setting/cluster` record; None without a record or with an unreadable one."""
    if value is None:
        return None
    try:
        return ClusterIdentity(
            kafka=str(value["kafka"]),
            group=str(value["group"]),
            topics=tuple(map(str, value["topics"])),
            backend=str(value["backend"]),
            ensemble=str(value.get("ensemble", "")),
        )
    except (KeyError, TypeError):
        return None


def identity_conflict(
    known: ClusterIdentity | None, mine: ClusterIdentity | None, accepted: str = ""
) -> CdcError | None:
    """Returns why a worker of identity `mine` must not use a log of identity `known`; None if it may."""
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


def reason_not_to_claim(
    state: ClusterState, term: Term, mine: ClusterIdentity | None, accepted: str = ""
) -> str | None:
    """Returns why this term must not claim the lead according to the log; None if it may."""
    known = identity_of(state.settings.get(CLUSTER))
    error = identity_conflict(known, mine and replace(mine, ensemble=term.ensemble), accepted)
    if error is not None:
        return f"{error} {error.hint}"
    newest = newest_claim(state, term.ensemble)
    if needs_claim(term) and newest > term.hint:
        return f"lock node {term.hint} is older than claim {newest} and can never lead"
    return None


def needs_claim(term: Term) -> bool:
    """Tells whether the term has no proof, so that its claim has to be in the log before any decision."""
    return term.proof is None


def newest_claim(state: ClusterState, ensemble: str) -> int:
    """Returns the highest czxid among the claims by this ensemble; -1 without any."""
    return max((hint for hint, value in _claims(state) if value.get("ensemble") == ensemble), default=-1)


def claim_record(term: Term, epoch: int, me: Presence) -> LogRecord:
    """Returns the `claim/<czxid>` record of this worker."""
    value = {"ensemble": term.ensemble, "epoch": epoch, "worker_id": me.worker_id, "boot_id": me.boot_id}
    return LogRecord(f"{CLAIM}{term.hint}", value)


def is_newest_claim(state: ClusterState, term: Term, epoch: int, me: Presence) -> bool:
    """Tells whether this worker's claim of this epoch was read back and none is newer."""
    value = state.settings.get(f"{CLAIM}{term.hint}", {})
    is_recorded = (value.get("ensemble"), value.get("epoch"), value.get("boot_id")) == (
        term.ensemble,
        epoch,
        me.boot_id,
    )
    return is_recorded and newest_claim(state, term.ensemble) == term.hint


def new_leader_records(state: ClusterState, term: Term, mine: ClusterIdentity | None) -> Iterator[LogRecord]:
    """Yields what a new leader writes besides its `leader` record: the cluster's identity, and tombstones of older
    claims."""
    if mine is not None:
        mine = replace(mine, ensemble=term.ensemble)
        if identity_of(state.settings.get(CLUSTER)) != mine:
            yield LogRecord(CLUSTER, {**state.settings.get(CLUSTER, {}), **asdict(mine), "topics": list(mine.topics)})
    for hint, value in sorted(_claims(state), key=lambda claim: claim[0]):
        if value.get("ensemble") != term.ensemble or hint < term.hint:
            yield LogRecord(f"{CLAIM}{hint}", None)


def _claims(state: ClusterState) -> Iterator[tuple[int, JsonObject]]:
    for key, value in state.settings.items():
        hint = key.removeprefix(CLAIM)
        if hint != key and hint.isascii() and hint.isdigit() and len(hint) <= _HINT_DIGITS_MAX:
            yield int(hint), value
