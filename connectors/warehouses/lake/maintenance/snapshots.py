"""Which snapshots of a table readers need: what an Iceberg table may expire, and how old what Delta removes has to be."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

AGE_MS: Final = 5 * 86_400_000
"""Iceberg's own default of `history.expire.max-snapshot-age-ms`."""
SNAPSHOTS_MAX: Final = 500
"""So many are expired at once: batches of the table wait meanwhile."""
DELTA_AGE_S: Final = 7 * 86_400.0
"""Delta's own default of `delta.deletedFileRetentionDuration`."""
_UNITS: Final = {"week": 604_800, "day": 86_400, "hour": 3600, "minute": 60, "second": 1}


@dataclass(frozen=True, slots=True)
class ExpiryGoal:
    """Which snapshots readers still need. Of what is None the table's properties tell."""

    age_s: float | None = None
    """Those that were the newest one so long ago, and all after them."""
    kept_min: int | None = None
    """So many of the newest ones."""


BY_PROPERTIES: Final = ExpiryGoal()


@dataclass(frozen=True, slots=True)
class TableSize:
    """The files of a table's newest version."""

    files: int
    bytes: int
    deletes: int
    """Delete files, or deletion vectors."""


@dataclass(frozen=True, slots=True)
class SnapshotExpiry:
    """Snapshots before `before_ms` are expired, but for the newest `kept_min`; `count` of them are there."""

    before_ms: int
    kept_min: int
    count: int


def expiry_of(
    metadata: Mapping[str, Any], goal: ExpiryGoal, kept: Collection[int], now_ms: int
) -> SnapshotExpiry | None:
    """Returns what can be expired of a table, given as Iceberg's JSON of its metadata; None: nothing. A snapshot is as old as
    the time since another one came after it: until then it was what readers began with."""
    properties = metadata.get("properties", {})
    if str(properties.get("gc.enabled", "true")).lower() == "false":
        return None
    age_ms = (
        int(properties.get("history.expire.max-snapshot-age-ms", AGE_MS)) if goal.age_s is None else goal.age_s * 1000
    )
    told = int(properties.get("history.expire.min-snapshots-to-keep", 1))
    kept_min = max(1, told if goal.kept_min is None else goal.kept_min)
    line = _line(metadata)
    at_horizon = next((at for at in line if at["timestamp-ms"] <= now_ms - age_ms), None)
    if at_horizon is None:
        return None
    named = [each["timestamp-ms"] for each in metadata["snapshots"] if each["snapshot-id"] in kept]
    last = max(at for at, each in enumerate(line) if each is at_horizon or each["snapshot-id"] in kept or at < kept_min)
    # Iceberg goes back from the newest one and ends at the first that is older: one that was made by a clock behind the others.
    before = min([*(each["timestamp-ms"] for each in line[: last + 1]), *named])
    own_ms = metadata.get("refs", {}).get("main", {}).get("max-snapshot-age-ms")
    if named and own_ms is not None and now_ms - int(own_ms) > before:
        # What the branch says of itself counts more to Iceberg.
        return None
    older = [each["timestamp-ms"] for each in reversed(line) if each["timestamp-ms"] < before]
    if len(older) > SNAPSHOTS_MAX:
        before = older[SNAPSHOTS_MAX]
    count = sum(each["timestamp-ms"] < before for each in metadata["snapshots"])
    return SnapshotExpiry(before, kept_min, count) if count else None


def _line(metadata: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The current snapshot and those before it, the newest first."""
    there = {each["snapshot-id"]: each for each in metadata.get("snapshots", ())}
    at, out = there.get(metadata.get("current-snapshot-id")), []
    while at is not None:
        out.append(at)
        at = there.get(at.get("parent-snapshot-id"))
    return out


def seconds_of(interval: str) -> float | None:
    """Returns the length of an interval as Delta's properties have it, such as `interval 7 days`; None: it has another form."""
    words = interval.strip().lower().removeprefix("interval ").split()
    total = 0.0
    if not words or len(words) % 2:
        return None
    for number, unit in zip(words[::2], words[1::2], strict=True):
        size = _UNITS.get(unit.removesuffix("s"))
        if size is None or not number.isascii() or not number.isdigit():
            return None
        total += int(number) * size
    return total
