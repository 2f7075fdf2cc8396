"""How far the reading of rows has come: loads, their tables, the key ranges of each. A part of the stored position."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from cdcworker.connectors.capture.snapshot.visibility import TransactionId
from cdcworker.schemas.change import JsonObject

AGAIN_ROWS_MAX: Final = 10_000
"""Keys to be read again that a position may carry; beyond it the table starts over."""
AGAIN_BYTES_MAX: Final = 256 * 1024
"""Of all of them, as the position writes them: a broker takes a record of a mebibyte. # INV-10"""
GONE_MAX: Final = 1_000
"""Tables that were forgotten and are remembered as such."""
DONE_MAX: Final = 32
"""Loads that have ended and are remembered: a request that comes again is not carried out again."""

Origin = Literal["start", "table", "request", "signal", "moved"]
"""Why rows are read: the connector is new, the table is, somebody asked for it, or a row of the signal table did; or
their keys have changed while values of theirs were not sent."""
SNAPSHOT_INDEX: Final = 2**31 - 1
"""`tx_index` of rows that were read: behind all that the transaction before the boundary holds."""
START: Final = "initial"
"""Id of the load that a new connector begins with."""


def now_ms() -> int:
    """The time of day in milliseconds."""
    return time.time_ns() // 1_000_000


class TaskStart(NamedTuple):
    """One start of a task: the process that reads it first. Sessions that are opened again in it are no new start."""

    epoch: int
    attempt: int


@dataclass(slots=True)
class KeyRange:
    """A range of keys, as text: from behind `last`, which has been handed on, up to `upto`."""

    last: list[str] | None = None
    upto: list[str] | None = None
    ended: bool = False

    def to_json(self) -> list[Any]:
        return [self.last, self.upto, self.ended]


@dataclass(slots=True, eq=False)
class TableLoad:
    """One table that is to be read. What is not stored is found out again after a restart."""

    table_id: int
    schema: str
    name: str
    parts: list[KeyRange] = field(default_factory=list)
    """Empty: not divided yet."""
    key: list[str] = field(default_factory=list)
    """Names of the columns that the ranges go by."""
    again: list[list[str]] = field(default_factory=list)
    """Keys that have to be read once more."""
    attempt: int = 0
    """Attempts at a table without a key."""
    filter: str = ""
    fresh: bool = True
    """It was never loaded: the stream's events cannot stand alone."""
    repaired: bool = False
    """Only the rows of `again` are read."""
    deletes: bool = False
    """Each of them that is not there is handed on as deleted."""
    rows: int = 0
    bytes: int = 0
    estimate: int = -1
    # -- not stored
    keyless: bool = False
    busy: bool = False
    """Its size and ranges are being found out."""
    retry_at: float = 0.0
    waiting_since: float | None = None
    waits_for: str = ""
    width: float = 0.0
    is_small: bool = False
    """All of it is one little chunk, as far as is known."""
    queued: set[tuple[str, ...]] = field(default_factory=set)
    """Of `again` those that are not being read: whatever has happened to them, they are still to be read."""

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def is_untouched(self) -> bool:
        """Its number says all that a position has to hold: there may be very many such tables."""
        return self.fresh and not (self.parts or self.key or self.again or self.attempt or self.filter or self.rows)

    @property
    def ended(self) -> bool:
        return bool(self.parts) and not self.again and all(part.ended for part in self.parts)

    def start_over(self) -> None:
        self.parts, self.again, self.key = [], [], []
        self.queued.clear()

    def to_json(self) -> JsonObject:
        out: JsonObject = {"t": [self.table_id, self.schema, self.name]}
        if self.parts:
            out["parts"] = [part.to_json() for part in self.parts]
        for name in ("key", "again", "attempt", "filter", "repaired", "deletes", "rows", "bytes"):
            if value := getattr(self, name):
                out[name] = value
        if self.estimate >= 0:
            out["estimate"] = self.estimate
        if not self.fresh:
            out["fresh"] = False
        return out

    @classmethod
    def from_json(cls, value: JsonObject) -> TableLoad:
        parts = [KeyRange(*part) for part in value.get("parts", ())]
        rest = {name: value[name] for name in _TABLE if name in value}
        table_id, schema, name = value["t"]
        return cls(table_id, schema, name, parts, **rest)


_TABLE: Final = ("key", "again", "attempt", "filter", "repaired", "deletes", "rows", "bytes", "estimate", "fresh")


@dataclass(slots=True, eq=False)
class SnapshotLoad:
    """Tables that are read for one reason; `tables` are those that are left. Stored, those that have not been begun are
    numbers, and have no names until `named` gives them some."""

    id: str
    origin: Origin
    tables: list[TableLoad] = field(default_factory=list)
    paused: bool = False
    rows_per_s: int = 0
    """At most; 0: as fast as it goes."""
    floor: int = 0
    """Transactions up to this id must have ended before a row is read: the stream may lack them, or have had them."""
    exempt: list[int] = field(default_factory=list)
    """But for these, which had certainly not committed when the load began."""
    tables_done: int = 0
    tables_cancelled: int = 0
    rows: int = 0
    """Of tables that are done or cancelled."""
    bytes: int = 0
    started_ms: int = 0
    # -- not stored
    next_at: float = 0.0
    waits_for: str = ""

    @property
    def rows_total(self) -> int:
        return self.rows + sum(table.rows for table in self.tables)

    @property
    def bytes_total(self) -> int:
        return self.bytes + sum(table.bytes for table in self.tables)

    def drop(self, table: TableLoad, *, cancelled: bool = False) -> None:
        """The table is done with, or is not wanted any more: what was read of it stays read."""
        self.tables.remove(table)
        self.tables_cancelled += cancelled
        self.tables_done += not cancelled
        self.rows += table.rows
        self.bytes += table.bytes

    def to_json(self) -> JsonObject:
        out: JsonObject = {"id": self.id, "origin": self.origin}
        out["tables"] = [table.to_json() for table in self.tables if not table.is_untouched]
        if rest := [table.table_id for table in self.tables if table.is_untouched]:
            out["rest"] = rest
        for name in _LOAD:
            if value := getattr(self, name):
                out[name] = value
        return out

    @classmethod
    def from_json(cls, value: JsonObject) -> SnapshotLoad:
        tables = [TableLoad.from_json(table) for table in value["tables"]]
        tables += [TableLoad(table_id, "", "") for table_id in value.get("rest", ())]
        return cls(value["id"], value["origin"], tables, **{name: value[name] for name in _LOAD if name in value})


_LOAD: Final = (
    "paused", "rows_per_s", "floor", "exempt", "tables_done", "tables_cancelled", "rows", "bytes", "started_ms",
)  # fmt: skip


@dataclass(slots=True)
class SnapshotProgress:
    """The `snapshot` part of the stored position."""

    loads: list[SnapshotLoad] = field(default_factory=list)
    loaded: list[int] = field(default_factory=list)
    """Numbers of the tables whose rows were all handed on."""
    done: list[JsonObject] = field(default_factory=list)
    """How the last loads ended."""
    unseen: list[TransactionId] = field(default_factory=list)
    """Transaction ids that were delivered and may not be visible yet."""
    e: int = 0
    """The commit number (`Position.commit`) of the rows that were handed on last: just before the boundary E of their chunk."""
    n: int = 0
    """How many rows were handed on at that place; the next one's number."""
    rows: int = 0
    """Rows that were handed on in all."""
    skips: dict[str, list[Any]] = field(default_factory=dict)
    """Tables without a key that have been read: their visibility and `hw`, as text and as the source stores places (see `SkippedEvents`)."""
    start: int = 0
    """The task epoch for which rows were last read because the mode says so at every start."""
    start_attempt: int = 0
    """The number of its process."""
    joined: int = 0
    """The highest number of an entry in the list of captured tables that was seen (of PostgreSQL: in the publication)."""
    left: bool = False
    """Tables were forgotten: one that comes may be one of them, and readers have rows of it."""
    gone: list[int] = field(default_factory=list)
    """Which ones; empty while `left` is true: nobody knows."""
    owed: bool = False
    """Tables have come whose rows are read only when the stream has passed a boundary."""
    published: str = ""
    """Letters of the operations that the source has sent."""
    gap: bool = False
    """It has left out some of them: every table has missed changes."""
    altered: str = ""
    """The transaction that altered it last."""

    def to_json(self) -> JsonObject:
        out: JsonObject = {"loaded": self.loaded}
        if self.loads:
            out["loads"] = [load.to_json() for load in self.loads]
        for name in _PROGRESS:
            if value := getattr(self, name):
                out[name] = value
        return out

    @classmethod
    def from_json(cls, value: JsonObject) -> SnapshotProgress:
        """ValueError for what is no stored progress."""
        try:
            progress = cls(**{name: value[name] for name in ("loaded", *_PROGRESS) if name in value})
            progress.loads = [SnapshotLoad.from_json(load) for load in value.get("loads", ())]
            if value.get("todo"):
                progress.loads.append(_of_first_form(value))
        except (TypeError, KeyError, ValueError, IndexError) as exc:
            raise ValueError("the snapshot's progress cannot be read") from exc
        return progress

    def named(self, known: Mapping[int, tuple[str, str, int]]) -> None:
        """Schema, name and estimated rows by number, for tables that were stored without."""
        for _, table in self.tables():
            if not table.name and table.table_id in known:
                table.schema, table.name, table.estimate = known[table.table_id]

    def tables(self) -> Iterator[tuple[SnapshotLoad, TableLoad]]:
        return ((load, table) for load in self.loads for table in load.tables)

    def again_bytes(self) -> int:
        """Returns the size of the keys that are to be read again."""
        return sum(len(json.dumps(table.again)) for _, table in self.tables() if table.again)

    def moved(self) -> SnapshotLoad | None:
        """The one that reads moved rows."""
        return next((load for load in self.loads if load.origin == "moved"), None)

    def known(self) -> set[int]:
        """Loaded, or to be loaded."""
        return {*self.loaded, *(table.table_id for _, table in self.tables() if table.fresh)}

    def knows(self, table_id: int) -> bool:
        return table_id in self.loaded or any(table.table_id == table_id and table.fresh for _, table in self.tables())

    def load(self, identity: str) -> SnapshotLoad | None:
        return next((load for load in self.loads if load.id == identity), None)

    def end(self, load: SnapshotLoad, state: str, ended_ms: int, error: JsonObject | None = None) -> None:
        """Remember how it ended."""
        self.loads.remove(load)
        if load.origin == "moved":
            # Nobody has asked for it, or will.
            return
        cancelled = load.tables_cancelled + (len(load.tables) if state == "CANCELLED" else 0)
        outcome = {
            "id": load.id,
            "origin": load.origin,
            "state": state,
            "rows": load.rows_total,
            "bytes": load.bytes_total,
            "tables_done": load.tables_done,
            "started_ms": load.started_ms,
            "ended_ms": ended_ms,
        }
        more = {"tables_cancelled": cancelled} if cancelled else {}
        self.done.append(outcome | more | ({"error": error} if error else {}))
        del self.done[:-DONE_MAX]

    def table_done(self, load: SnapshotLoad, table: TableLoad, *, loaded: bool = True) -> None:
        load.drop(table)
        # Readers may have some of its rows; it comes back as another table, or as one that is not known any more.
        if table.fresh and not loaded:
            self._forgotten({table.table_id})
        if loaded and table.table_id not in self.loaded:
            self.loaded.append(table.table_id)

    def forget_all_but(self, captured: AbstractSet[int]) -> bool:
        """Tables that are not captured any more: one that comes back has missed changes and is read again."""
        before = {*self.loaded, *(table.table_id for _, table in self.tables())}
        for load in self.loads:
            load.tables = [table for table in load.tables if table.table_id in captured]
        self.loaded = [table_id for table_id in self.loaded if table_id in captured]
        self._forgotten(before - captured)
        return not before <= captured

    def _forgotten(self, table_ids: AbstractSet[int]) -> None:
        if not table_ids or (self.left and not self.gone):
            return
        gone = sorted({*self.gone, *table_ids})
        self.left, self.gone = True, gone if len(gone) <= GONE_MAX else []

    def came_back(self, table_ids: AbstractSet[int]) -> None:
        """These tables are known again, and begin with a truncate. Once the last one that was forgotten is back, a table
        that comes is a new one."""
        if self.gone:
            self.gone = [table_id for table_id in self.gone if table_id not in table_ids]
            self.left = bool(self.gone)

    def returning(self, members: Mapping[int, int]) -> set[int]:
        """Tables that come and of which readers may have rows of an earlier time: they were not captured, or are
        new while others are gone, whose names they may have."""
        known = self.known()
        back = {table_id for table_id, member in members.items() if table_id in known and member > self.joined > 0}
        return back | (members.keys() - known if self.left or not known <= members.keys() else set())

    def differs(self, members: Mapping[int, int]) -> bool:
        """Returns whether `forget_gaps` would change anything."""
        return max(members.values(), default=0) > self.joined or not members.keys() >= set(self.loaded)

    def forget_gaps(self, members: Mapping[int, int]) -> set[int]:
        """Known tables that were not captured for a while, or are not: `members` are the numbers of the entries of those
        that are. They have missed changes. The ones that are back."""
        known = self.known()
        back = {table_id for table_id, member in members.items() if member > self.joined > 0 and table_id in known}
        self.joined = max(self.joined, *members.values(), 0)
        self.forget_all_but(members.keys() - back)
        return back


_PROGRESS: Final = (
    "done", "unseen", "e", "n", "rows", "skips", "start", "start_attempt", "joined", "left", "gone", "owed", "published", "gap", "altered",
)  # fmt: skip


def _of_first_form(value: JsonObject) -> SnapshotLoad:
    """Positions of the first form knew one load, of whose tables the first was under way."""
    tables = [TableLoad(*table) for table in value["todo"]]
    head = tables[0]
    head.again, head.attempt = value.get("again", []), value.get("attempt", 0)
    if value.get("last") is not None or value.get("ended"):
        head.parts = [KeyRange(value.get("last"), None, bool(value.get("ended")))]
    return SnapshotLoad(START, "start", tables, floor=value.get("floor", 0))


def without_keys(value: JsonObject) -> JsonObject:
    """Returns a stored progress for whoever may not see rows. Loads hold keys up to which rows were read: only their number is left.
    `SnapshotProgress.from_json` refuses it, so that no task goes on from it."""
    loads = value.get("loads") or value.get("todo")
    if not loads:
        return value
    left = {name: item for name, item in value.items() if name in ("loaded", *_PROGRESS)}
    return left | {"loads": len(loads) if isinstance(loads, list) else 1}


def is_loaded(value: JsonObject | None) -> bool:
    """Returns whether a stored progress says that all rows were handed on."""
    return value is not None and not any(value.get(name) for name in ("todo", "loads", "skips", "owed"))
