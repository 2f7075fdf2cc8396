"""What would happen to a cluster's connectors: frozen values, decided without a request."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from cdcworker.connectors.config import secret_names
from cdcworker.connectors.config.secret_names import MASK
from cdcworker.worker.cli.connector_sets.connections import PlannedConnection
from cdcworker.worker.cli.connector_sets.files import WantedConnector, WantedSet

Effect = Literal["created", "changed", "unchanged", "deleted"]
FORM = 1
"""The version of a plan's file."""
FILTERS = tuple(f"{what}.{side}.list" for what in ("table", "schema", "database") for side in ("include", "exclude"))
TOPICS = ("topics", "topics.regex")
SNAPSHOT_MODE = "snapshot.mode"
READS_NOTHING = ("never", "no_data", "schema_only")
"""Values of `snapshot.mode` with which no table is read first."""
READS_AT_EVERY_START = "always"


@dataclass(frozen=True)
class PresentConnector:
    """A connector as the cluster has it, its secrets masked."""

    name: str
    kind: str
    version: int
    config: Mapping[str, str]
    labels: Mapping[str, str]


@dataclass(frozen=True)
class PlannedConnector:
    """What happens to one connector."""

    name: str
    effect: Effect
    kind: str
    version: int | None = None
    """The version that the cluster has; None: the connector is not there."""
    changes: Sequence[Mapping[str, Any]] = ()
    """Keys of the config with their values before and after, secrets masked."""
    labels: Mapping[str, str] | None = None
    """The labels that it gets; None: they stay."""
    tasks: Mapping[str, Any] = field(default_factory=dict)
    """Numbers of the tasks that `start`, `restart` and `stop`."""
    reads: str = ""
    """What is read from the source or the topics once more, or for the first time."""
    findings: Sequence[Mapping[str, Any]] = ()

    @property
    def refused(self) -> bool:
        """Whether the cluster would refuse it."""
        return any(item["severity"] == "error" for item in self.findings)


@dataclass(frozen=True)
class SetPlan:
    """What happens to all connectors of a set, in the order in which it is carried out."""

    connectors: Sequence[PlannedConnector]
    prune: bool = False
    label: str = ""
    connections: Sequence[PlannedConnection] = ()
    """They come before the connectors that name them."""

    @property
    def parts(self) -> list[PlannedConnection | PlannedConnector]:
        """Everything that the set has, in its order."""
        return [*self.connections, *self.connectors]

    @property
    def steps(self) -> list[PlannedConnection | PlannedConnector]:
        """What anything happens to, in its order."""
        return [one for one in self.parts if one.effect != "unchanged"]

    @property
    def refused(self) -> list[str]:
        return [one.name for one in self.parts if one.refused]


def in_order(connectors: Iterable[PlannedConnector]) -> list[PlannedConnector]:
    """Returns sources before the sinks that read from them, and what goes last, its sinks first."""

    def place(one: PlannedConnector) -> tuple[bool, bool, str]:
        leaves = one.effect == "deleted"
        return leaves, (one.kind == "sink") != leaves, one.name

    return sorted(connectors, key=place)


def new_labels(wanted: WantedConnector, present: PresentConnector | None) -> dict[str, str] | None:
    """Returns the labels that the connector gets; None where they stay as they are."""
    before = dict(present.labels) if present is not None else {}
    after = {**(before if wanted.labels is None else wanted.labels), **wanted.others}
    return None if after == before else after


def superfluous(
    present: Mapping[str, PresentConnector], wanted: Iterable[WantedConnector], label: tuple[str, str]
) -> list[PresentConnector]:
    """Returns the connectors that carry the set's label and are not in it any more."""
    kept = {one.name for one in wanted}
    key, value = label
    return [one for name, one in sorted(present.items()) if name not in kept and one.labels.get(key) == value]


def reads(
    effect: Effect,
    kind: str,
    config: Mapping[str, Any],
    changes: Iterable[Mapping[str, Any]],
    *,
    takes_snapshots: bool,
) -> str:
    """Returns what is read because of the change, as a text; nothing where only the stream goes on."""
    changed = {item["key"] for item in changes}
    if kind == "sink" and effect == "created":
        return "its topics, from their beginning"
    if kind == "sink" and changed.intersection(TOPICS):
        return "topics that it has not read yet, from their beginning"
    mode = config.get(SNAPSHOT_MODE)
    if kind == "source" and takes_snapshots and mode not in READS_NOTHING:
        if effect == "created" or (mode == READS_AT_EVERY_START and changed):
            return "all its tables, in a snapshot"
        if changed.intersection(FILTERS):
            return "tables that its filters add, in a snapshot"
    return ""


def as_told(changes: Iterable[Mapping[str, Any]], told: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the changes with every value masked of which the cluster does not say that it may be shown.

    `told` has the values that the cluster shows, by key: those of `from` only where it would take the config.
    """
    out = []
    for item in changes:
        shown = told.get(item["key"], {})
        is_secret = MASK in (shown.get("to"), shown.get("from")) or not shown
        masked = {side: MASK for side in ("from", "to") if is_secret and not _is_reference(item[side])}
        out.append({**item, **{side: text for side, text in masked.items() if item[side] is not None}})
    return out


def _is_reference(value: str | None) -> bool:
    return value is not None and secret_names.REFERENCE.fullmatch(value) is not None


def as_json(plan: SetPlan) -> dict[str, Any]:
    """Returns the plan's form in JSON."""
    counts = {effect: sum(one.effect == effect for one in plan.connectors) for effect in _EFFECTS}
    return {
        "form": FORM,
        "prune": plan.prune,
        "label": plan.label,
        "counts": counts,
        "connectors": [asdict(one) for one in plan.connectors],
        "connections": [asdict(one) for one in plan.connections],
    }


_EFFECTS: tuple[Effect, ...] = ("created", "changed", "deleted", "unchanged")


def fingerprint(plan: SetPlan, wanted: WantedSet, salt: bytes) -> str:
    """Returns a fingerprint of the plan and of what is wanted; the price of a guess keeps secrets of the files to themselves."""
    decided = [(one.name, one.effect, one.version, one.labels) for one in plan.connectors]
    asked = [(one.name, dict(one.config), one.labels, dict(one.others), one.initial_state) for one in wanted.connectors]
    parts: list[Any] = [decided, asked, plan.prune, plan.label]
    if wanted.connections:
        parts.append([(one.name, one.effect, one.version) for one in plan.connections])
        parts.append([(one.name, dict(one.config)) for one in wanted.connections])
    content = json.dumps(parts, sort_keys=True).encode()
    return hashlib.scrypt(content, salt=salt, n=1 << 14, r=8, p=1, dklen=32).hex()


def same_fingerprint(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def differing(kept: Mapping[str, Any], plan: SetPlan) -> list[str]:
    """Returns the names of the connectors of which a kept plan says something else than the plan of this moment."""
    before, after = _by_name(kept), _by_name(as_json(plan))
    return sorted({part[1] for part in {*before, *after} if before.get(part) != after.get(part)})


def _by_name(content: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """Returns what is decided about each part of a plan, by its kind and name."""
    items = [(kind, item) for kind in ("connectors", "connections") for item in content.get(kind, ())]
    return {(kind, item["name"]): _decided(item) for kind, item in items}


def _decided(item: Mapping[str, Any]) -> Any:
    decided = {member: item.get(member) for member in ("effect", "version", "changes", "labels")}
    return json.loads(json.dumps(decided))
