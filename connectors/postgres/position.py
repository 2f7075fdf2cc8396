"""The stored position of a task: where the stream resumes and how far the snapshot has come."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cdcworker.connectors.capture.snapshot.progress import SnapshotProgress
from cdcworker.connectors.postgres.errors import POSITION_INVALID
from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CdcError

VERSION = 1
VERSION_PARTS = 2
"""Of positions inside a transaction: whoever does not know of them must not resume there."""


@dataclass(slots=True)
class StoredPosition:
    """`safe_lsn`: every transaction whose commit record lies before it is in Kafka or of no concern.

    `commit_lsn` is the last transaction (or non-transactional message) handed on: never handed on again.
    `mark_lsn` is the commit of a transaction with a message of our own, which a slot sends whatever is published.
    """

    system_id: str
    timeline: int
    slot: str
    mark_lsn: int
    commit_lsn: int
    safe_lsn: int
    ts_ms: int = 0
    part: tuple[int, int] | None = None
    """Commit LSN of a transaction of which so many messages have been handed on, in parts of their own."""
    orders: dict[str, int] | None = None
    """How many events of that transaction were handed on, by data collection, where they are numbered."""
    snapshot: JsonObject | None = field(default=None)
    quarantine: JsonObject | None = field(default=None)
    """Tables that are held back, by name."""
    shapes: JsonObject | None = field(default=None)
    """Fingerprints of the shapes in force, where the policy for schema changes needs them."""
    keys: JsonObject | None = field(default=None)
    """Last known keys of tables whose descriptions in the stream do not say them, by OID."""
    timestamptz: str = "padded"
    """How fractions of timestamptz are written: `padded`, or `shortest` as by versions whose positions do not say it."""
    key_nan: str = "number"
    """How `NaN` of a numeric(p,s) is written in keys: as a `number`, or as `empty` bytes as by versions whose positions do
    not say it."""

    def to_json(self) -> JsonObject:
        part: JsonObject = {"part": list(self.part)} if self.part else {}
        if self.part and self.orders:
            part["orders"] = self.orders
        return {
            "v": VERSION_PARTS if self.part else VERSION,
            "system_id": self.system_id,
            "timeline": self.timeline,
            "slot": self.slot,
            "mark_lsn": self.mark_lsn,
            # Asked for by earlier versions.
            "marker_lsn": self.mark_lsn,
            "commit_lsn": self.commit_lsn,
            "safe_lsn": self.safe_lsn,
            "ts_ms": self.ts_ms,
            **part,
            "snapshot": self.snapshot,
            **({"quarantine": self.quarantine} if self.quarantine else {}),
            # Earlier versions would take them for fingerprints of their own in `shapes`.
            **({"forms": self.shapes} if self.shapes else {}),
            **({"keys": self.keys} if self.keys else {}),
            "timestamptz": self.timestamptz,
            "key_nan": self.key_nan,
        }

    @classmethod
    def from_json(cls, value: JsonObject) -> StoredPosition:
        """Unknown fields are left alone; a missing or wrong one is CdcError `postgres.position_invalid`."""
        if value.get("v") not in (VERSION, VERSION_PARTS):
            raise CdcError(POSITION_INVALID, "the stored position is of another version")
        try:
            snapshot = value.get("snapshot")
            numbers = {name: _number(value, name) for name in ("timeline", "commit_lsn", "safe_lsn")}
            return cls(
                system_id=str(value["system_id"]),
                slot=str(value["slot"]),
                ts_ms=int(value.get("ts_ms") or 0),
                mark_lsn=int(value.get("mark_lsn") or 0),
                part=_part(value.get("part")),
                orders={str(name): int(count) for name, count in (value.get("orders") or {}).items()} or None,
                snapshot=dict(snapshot) if snapshot is not None else None,
                quarantine=dict(value.get("quarantine") or {}) or None,
                shapes=dict(value.get("forms") or value.get("shapes") or {}) or None,
                keys={str(int(oid)): list(names) for oid, names in (value.get("keys") or {}).items()} or None,
                timestamptz="padded" if value.get("timestamptz") == "padded" else "shortest",
                key_nan="number" if value.get("key_nan") == "number" else "empty",
                **numbers,
            )
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as exc:
            raise CdcError(POSITION_INVALID, "the stored position lacks a field or holds a wrong one") from exc


def _part(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    lsn, index = value
    if not isinstance(lsn, int) or not isinstance(index, int) or lsn <= 0 or index <= 0:
        raise ValueError("part")
    return lsn, index


def _number(value: JsonObject, name: str) -> int:
    number: Any = value[name]
    if not isinstance(number, int) or number < 0:
        raise ValueError(name)
    return number


def progress_of(snapshot: JsonObject) -> SnapshotProgress:
    """Returns a position's snapshot; CdcError `postgres.position_invalid` where it cannot be read."""
    try:
        return SnapshotProgress.from_json(snapshot)
    except ValueError as exc:
        raise CdcError(POSITION_INVALID, str(exc)) from exc
