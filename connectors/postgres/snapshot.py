"""Snapshots by watermark chunks, exact without a long transaction and resumable by chunk.

A chunk is a key range read in one short transaction with snapshot S, between two transactions of the stream.

1. Every transaction that the stream delivered before the chunk was read must be visible in S, else it is read again.
2. From then on an event of a transaction that S does not see drops the row of its key: the event is newer.
3. At the first boundary of the stream at or behind `hw` (the log's insert position when S was taken) every transaction
   that S sees has been delivered. The rows that are left are handed on there: after everything before that boundary,
   before everything behind it. Position (boundary - 1, 2^31 - 1, n): commit records lie at or behind the boundary.
4. Progress is part of the position and so of the Kafka transaction that holds the rows. After a kill the chunk is
   read again; what was deleted meanwhile is deleted by the stream, which resumes at the same position.

A row whose newer event left a TOAST value out is read again by its key (`again`), as is one that a skipped operation
touched. Transactions older than the slot or the publication have ids below `floor`: chunks wait until S sees them all.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from cdcworker.connectors.postgres import wire
from cdcworker.connectors.postgres.changes import Event
from cdcworker.connectors.postgres.chunks import Busy, Chunk, KeyTexts, NotVisibleYet, Reader, TableGone, View
from cdcworker.connectors.postgres.errors import POSITION_INVALID
from cdcworker.connectors.postgres.relations import Plan
from cdcworker.connectors.postgres.visibility import TxSnapshot
from cdcworker.schemas.change import Change, JsonObject, Position, Row
from cdcworker.schemas.errors import CdcError

log = logging.getLogger(__name__)

SNAPSHOT_INDEX = 2**31 - 1
"""`tx_index` of snapshot rows: behind every message of a transaction."""
AGAIN_ROWS_MAX = 10_000
"""Keys to be read again that a position may carry; beyond it the table starts over."""
AGAIN_CHUNK_ROWS = 500
UNSEEN_MAX = 1_000
"""Delivered transaction ids that are kept before they are compared with a fresh snapshot."""
RETRY_S = 0.1
COMPLAIN_S = 10.0


@dataclass(slots=True)
class Skip:
    """Events of a table without a key that its rows hold already: those of transactions that `snap` sees."""

    snap: TxSnapshot
    hw: int


@dataclass(slots=True)
class Progress:
    """How far the snapshot has come; the `snapshot` part of the stored position."""

    floor: int = 0
    todo: list[list[Any]] = field(default_factory=list)
    """[OID, schema, name] of tables to be read; the first one is under way."""
    loaded: list[int] = field(default_factory=list)
    last: list[str] | None = None
    """Key of the last row that was handed on, as text."""
    ended: bool = False
    again: list[list[str]] = field(default_factory=list)
    attempt: int = 0
    """Attempts at a table without a key."""
    unseen: list[int] = field(default_factory=list)
    """Transaction ids that were delivered and may not be visible yet."""
    e: int = 0
    n: int = 0
    rows: int = 0
    skips: dict[str, list[Any]] = field(default_factory=dict)

    def to_json(self) -> JsonObject:
        return {name: value for name, value in asdict(self).items() if value or name == "loaded"}

    @classmethod
    def from_json(cls, value: JsonObject) -> Progress:
        try:
            return cls(**{name: value[name] for name in cls.__dataclass_fields__ if name in value})
        except (TypeError, KeyError) as exc:
            raise CdcError(POSITION_INVALID, "the snapshot's progress cannot be read") from exc

    def next_table(self) -> None:
        """The table at the head is done with."""
        self.loaded.append(self.todo.pop(0)[0])
        self.last, self.ended, self.again, self.attempt = None, False, [], 0

    def start_over(self) -> None:
        self.last, self.ended, self.again = None, False, []

    def forget_all_but(self, captured: set[int]) -> bool:
        """Tables that are not captured any more: one that comes back has missed changes and is read again."""
        known = len(self.todo) + len(self.loaded)
        if self.todo and self.todo[0][0] not in captured:
            self.start_over()
            self.attempt = 0
        self.todo = [table for table in self.todo if table[0] in captured]
        self.loaded = [oid for oid in self.loaded if oid in captured]
        return len(self.todo) + len(self.loaded) < known


Identity = Any


def identity_of(row: Row, key: tuple[int, ...]) -> Identity:
    """A key as something that can be looked up, also where a value is NaN or cannot be hashed."""
    values = tuple(row[i] for i in key)
    for value in values:
        if value != value or isinstance(value, dict | list):
            return repr(values)
    return values


@dataclass(slots=True)
class Window:
    """A chunk that waits for its boundary; rows leave it when the stream has something newer."""

    oid: int
    chunk: Chunk
    rows: dict[Identity, tuple[Row, KeyTexts]]
    keys: list[KeyTexts] | None
    """Set when the chunk reads single keys again."""
    key_names: tuple[str, ...] = ()
    void: bool = False


class Snapshot:
    """The state of a snapshot beside the stream; an `Observer` of its events."""

    def __init__(self, progress: Progress, reader: Reader, template: JsonObject) -> None:
        self.progress = progress
        self.window: Window | None = None
        self._reader = reader
        self._template = template
        self._skips = {int(oid): Skip(TxSnapshot.parse(s), hw) for oid, (s, hw) in progress.skips.items()}
        self._xid = 0
        self._visible = False
        self._retry_at = 0.0
        self._waiting_since: float | None = None
        self._complained = 0.0
        self.waits_for = ""
        self.moves = 0
        """Grows with every step of progress: a step is worth a position even when it has brought no rows."""
        self.keyless_table = False
        """The table at the head has no key: it is to be read whole."""

    @property
    def active(self) -> bool:
        return bool(self.progress.todo)

    @property
    def finished(self) -> bool:
        """Nothing left to read and nothing left to leave out."""
        return not self.progress.todo and not self._skips

    # -- Observer ---------------------------------------------------------------------------------------------------

    def began(self, xid: int) -> None:
        self._xid = xid
        self._visible = self.window is not None and self.window.chunk.view.snap.sees(xid)

    def event(self, plan: Plan, event: Event) -> bool:
        oid = plan.relation.oid
        skip = self._skips.get(oid)
        if skip and skip.snap.sees(self._xid):
            return False
        if not self.progress.todo:
            return True
        if not plan.table.key:
            return all(table[0] != oid for table in self.progress.todo)
        if self.progress.todo[0][0] != oid:
            return True
        window = self.window
        if window and window.oid == oid and not window.void and not self._visible:
            self._touch(window, plan, event)
        if event.key_changed and event.unchanged:
            self._read_again(plan, event)
        return True

    def reshaped(self, plan: Plan) -> None:
        """The table has another shape than the chunk was read with: read it again."""
        if self.window and self.window.oid == plan.relation.oid and plan.table != self.window.chunk.plan.table:
            self.window.void = True

    def _touch(self, window: Window, plan: Plan, event: Event) -> None:
        if tuple(column.name for column in plan.table.key_columns) != window.key_names:
            window.void = True
            return
        if event.op == "t":
            window.rows.clear()
            return
        for row in (event.before, event.after):
            if row is None:
                continue
            hit = window.rows.pop(identity_of(row, plan.table.key), None)
            if hit and (not event.emitted or (row is event.after and event.unchanged)):
                self._again(list(hit[1]))

    def _read_again(self, plan: Plan, event: Event) -> None:
        """A moved row with unsent values: its new key may lie in a range that was handed on without them."""
        names = [column.name for column in plan.relation.columns]
        texts, _ = wire.read_texts(event.data, event.at, len(names))
        key = [texts[names.index(column.name)] for column in plan.table.key_columns]
        known = [text.decode() for text in key if text is not None]
        if len(known) == len(key):
            self._again(known)
        else:
            self._start_over()

    def _again(self, key: list[str]) -> None:
        self.progress.again.append(key)
        if len(self.progress.again) > AGAIN_ROWS_MAX:
            self._start_over()

    def _start_over(self) -> None:
        log.warning("table starts over table=%s", ".".join(self.progress.todo[0][1:3]))
        self.progress.start_over()
        if self.window:
            self.window.void = True

    # -- boundaries of the stream -----------------------------------------------------------------------------------

    def committed(self, xid: int) -> None:
        """A transaction has been delivered whole."""
        if self.progress.todo:
            self.progress.unseen.append(xid)

    def passed(self, safe_lsn: int) -> None:
        """Everything before `safe_lsn` has been delivered: what was to be left out is behind us."""
        for oid in [oid for oid, skip in self._skips.items() if skip.hw <= safe_lsn]:
            del self._skips[oid]
            del self.progress.skips[str(oid)]

    def wants_chunk(self) -> bool:
        return bool(self.progress.todo) and self.window is None and time.monotonic() >= self._retry_at

    def ripe(self, safe_lsn: int) -> bool:
        return self.window is not None and safe_lsn >= self.window.chunk.view.hw

    def to_json(self) -> JsonObject:
        progress = self.progress
        if len(progress.unseen) > UNSEEN_MAX:
            self._prune(self._reader.current_snapshot())
        return progress.to_json()

    def _prune(self, snap: TxSnapshot) -> None:
        # What a snapshot sees every later one sees too.
        self.progress.unseen = [xid for xid in self.progress.unseen if not snap.sees(xid)]

    # -- windows ----------------------------------------------------------------------------------------------------

    def open_window(self) -> bool:
        """Between two transactions: read the next chunk. False when there is none now, or the table has no key."""
        progress = self.progress
        oid = progress.todo[0][0]
        opened = self.begin_read(oid)
        if opened is None:
            return False
        view, plan = opened
        if not plan.table.key:
            self._reader.end()
            self._becomes_keyless()
            return False
        keys = [tuple(key) for key in progress.again[:AGAIN_CHUNK_ROWS]] or None
        if keys and len(keys[0]) != len(plan.table.key):
            self._start_over()
            keys = None
        after = tuple(progress.last) if progress.last is not None else None
        if after is not None and len(after) != len(plan.table.key):
            progress.start_over()
            after = None
        chunk = self._reader.read(view, plan, None if keys else after, keys)
        rows = {identity_of(row, plan.table.key): (row, texts) for row, texts in chunk.rows}
        names = tuple(column.name for column in plan.table.key_columns)
        self.window = Window(oid, chunk, rows, keys, names)
        return True

    def _becomes_keyless(self) -> None:
        self.keyless_table = True
        if self.progress.last is not None:
            # Rows of an earlier, keyed attempt have been handed on: this one has to take them back.
            self.progress.start_over()
            self.progress.attempt += 1

    def begin_read(self, oid: int) -> tuple[View, Plan] | None:
        """A read transaction that sees all it must; None when it has to wait, or the table is gone."""
        try:
            view, plan = self._reader.begin(oid)
            try:
                self._must_see(view.snap)
            except NotVisibleYet:
                self._reader.end()
                raise
        except TableGone:
            log.info("table is gone table=%s", ".".join(self.progress.todo[0][1:3]))
            self._finish_table()
            return None
        except Busy:
            self._wait("a lock on the table")
            return None
        except NotVisibleYet:
            self._wait("older transactions")
            return None
        self._waiting_since = None
        self.waits_for = ""
        return view, plan

    def _must_see(self, snap: TxSnapshot) -> None:
        if snap.xmin <= self.progress.floor:
            raise NotVisibleYet
        self._prune(snap)
        if self.progress.unseen:
            raise NotVisibleYet

    def _wait(self, reason: str) -> None:
        now = time.monotonic()
        self._retry_at = now + RETRY_S
        self.waits_for = reason
        self._waiting_since = self._waiting_since or now
        if now - self._waiting_since > COMPLAIN_S and now - self._complained > COMPLAIN_S:
            self._complained = now
            table = ".".join(self.progress.todo[0][1:3])
            log.warning("snapshot waits table=%s for=%s s=%d", table, reason, now - self._waiting_since)

    def close_window(self, safe_lsn: int) -> list[Change]:
        """At a boundary at or behind `hw`: the rows that nothing newer has touched, and the progress they mean."""
        window, self.window = self.window, None
        assert window
        if window.void:
            return []
        chunk, progress = window.chunk, self.progress
        stamp = self.stamper(chunk.plan, chunk.view, safe_lsn)
        changes = [stamp(row) for row, _ in window.rows.values()]
        if window.keys is not None:
            progress.again = progress.again[len(window.keys) :]
        else:
            if chunk.rows:
                progress.last = list(chunk.rows[-1][1])
            progress.ended = chunk.ended
        self.moves += 1
        if progress.ended and not progress.again:
            self._finish_table()
        return changes

    def _finish_table(self) -> None:
        oid, schema, table = self.progress.todo[0]
        self.progress.next_table()
        self.moves += 1
        self._reader.table_changed()
        self.keyless_table = False
        log.info("table loaded table=%s.%s oid=%d left=%d", schema, table, oid, len(self.progress.todo))

    def stamper(self, plan: Plan, view: View, safe_lsn: int) -> Callable[[Row | None], Change]:
        """Makes changes at the boundary `safe_lsn`, each with the next position there; None makes a truncate."""
        progress = self.progress
        if progress.e != safe_lsn - 1:
            progress.e, progress.n = safe_lsn - 1, 0
        base = {
            **self._template,
            "ts_ms": view.ts_us // 1000,
            "ts_us": view.ts_us,
            "ts_ns": view.ts_us * 1000,
            "snapshot": "true",
            "schema": plan.table.path[0],
            "table": plan.table.path[1],
            "lsn": progress.e,
            "commit_lsn": progress.e,
            "tx_index": SNAPSHOT_INDEX,
        }

        def stamp(row: Row | None) -> Change:
            sub = progress.n
            progress.n = sub + 1
            position = Position(progress.e, SNAPSHOT_INDEX, sub)
            if row is None:
                return Change("t", plan.out, position, {**base, "tx_sub": sub})
            progress.rows += 1
            return Change("r", plan.out, position, {**base, "tx_sub": sub}, None, row)

        return stamp

    # -- tables without a key ---------------------------------------------------------------------------------------

    def read_keyless(self, view: View, plan: Plan) -> None:
        """All rows of the table at the head have been handed on: leave out what they hold already."""
        oid = plan.table.table_id
        self._skips[oid] = Skip(view.snap, view.hw)
        self.progress.skips[str(oid)] = [str(view.snap), view.hw]
        self._finish_table()
