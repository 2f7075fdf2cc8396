"""Snapshots by watermark chunks, exact without a long transaction, in parallel and resumable by chunk.

A chunk is a key range, read in one short transaction with snapshot S by a connection of its own, beside the stream.

1. Its window is opened at a boundary of the stream. Every transaction that was delivered before must be visible in S,
   else it is read again. From then on it is shown every event of its table.
2. An event of a transaction that S does not see drops the row of its key: the event is newer.
3. At the first boundary of the stream at or behind `hw` (the log's insert position when S was taken) every transaction
   that S sees has been delivered. The rows that are left are handed on there: after everything before that boundary,
   before everything behind it. Position (boundary - 1, 2^31 - 1, n): commit records lie at or behind the boundary.
4. Progress is part of the position and so of the Kafka transaction that holds the rows. After a kill the chunk is
   read again; what was deleted meanwhile is deleted by the stream, which resumes at the same position.

A row whose newer event left a TOAST value out is read again by its key (`again`), as is one that a skipped operation
touched, and after the load a row whose key changed while such a value was left out (`moved`): what the reader of its new
key has of it is not known. Transactions older than the slot or the publication have ids below `floor`: chunks wait until S sees them all.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cdcworker.connectors.postgres.chunks import Named, View
from cdcworker.connectors.postgres.events import Event
from cdcworker.connectors.postgres.loading import Loader
from cdcworker.connectors.postgres.progress import Load, Part, Progress, TableLoad
from cdcworker.connectors.postgres.relations import Plan
from cdcworker.connectors.postgres.stamping import RowWriter, Stamp, stamped
from cdcworker.connectors.postgres.visibility import TxSnapshot
from cdcworker.connectors.postgres.window import Window, is_first, new_key_texts, touch_of
from cdcworker.schemas.change import Change, JsonObject, Ready
from cdcworker.schemas.failpoints import hit

log = logging.getLogger(__name__)

LOADING_MAX: Final = 100
PASSED_BYTES_MAX: Final = 3 * 1024 * 1024
"""Handed on at one boundary, beyond which chunks wait for the next: as records rows need several times their size."""
ROW_BYTES: Final = 250
"""What a record needs beside its row."""
UNSEEN_MAX: Final = 1_000
"""Delivered transaction ids that are kept before they are compared with a fresh snapshot."""


@dataclass(slots=True)
class Skip:
    """Events of a table without a key that its rows hold already: those of transactions that `snap` sees."""

    snap: TxSnapshot
    hw: int


class Snapshot:
    """The state of all loads beside the stream; an `Observer` of its events. Called at boundaries but for `event`."""

    def __init__(self, loader: Loader, template: JsonObject, current: Callable[[], TxSnapshot]) -> None:
        self.progress: Progress = loader.progress
        self.loader = loader
        self.writer: RowWriter | None = None
        """Who writes records at once, where that is wanted."""
        self.check: Callable[[Plan], None] = lambda plan: None
        """CdcError when rows of this shape may not be handed on."""
        self._template = template
        self._current = current
        skips = self.progress.skips.items()
        self._skips = {int(oid): Skip(TxSnapshot.parse(snap), hw) for oid, (snap, hw) in skips}
        self._xid = 0
        self._tables: dict[int, list[TableLoad]] = {}
        self._tables_at = -1

    @property
    def active(self) -> bool:
        """Rows are being read."""
        return any(not load.paused for load in self.progress.loads)

    @property
    def finished(self) -> bool:
        """Nothing left to read and nothing left to leave out."""
        return not self.progress.loads and not self._skips

    @property
    def complete(self) -> bool:
        """And no table is waited for whose rows are to be read later."""
        return self.finished and not self.progress.owed

    @property
    def loading(self) -> list[str]:
        """Tables whose rows are handed on for the first time; not more names than a record should hold."""
        found = sorted({table.full_name for _, table in self.progress.tables() if table.fresh})
        return found[:LOADING_MAX]

    @property
    def moves(self) -> int:
        return self.loader.moves

    @property
    def waits_for(self) -> str:
        found = (load.waits_for or table.waits_for for load, table in self.progress.tables())
        return next((reason for reason in found if reason), "")

    # -- Observer ---------------------------------------------------------------------------------------------------

    def began(self, xid: int) -> None:
        self._xid = xid
        for window in self.loader.windows:
            window.began(xid)

    def event(self, plan: Plan, event: Event) -> bool:
        oid = plan.relation.oid
        skip = self._skips.get(oid)
        if skip and skip.snap.sees(self._xid):
            return False
        tables = self._of(oid)
        if not tables:
            return True
        if not plan.table.key:
            # Nothing tells its rows apart: until they have been read, they stand for its events.
            return not any(table.fresh for table in tables)
        windows = [window for window in self.loader.windows if window.table.oid == oid]
        if windows:
            touch = touch_of(self._xid, plan, event)
            for window in windows:
                window.touched(touch)
        if event.key_changed and event.unchanged:
            for table in tables:
                if table.parts and table.fresh:
                    self._read_again(table, plan, event.data)
        return True

    def _of(self, oid: int) -> list[TableLoad]:
        if self._tables_at != self.loader.moves:
            self._tables_at, self._tables = self.loader.moves, {}
            for _, table in self.progress.tables():
                self._tables.setdefault(table.oid, []).append(table)
        return self._tables.get(oid, [])

    def reshaped(self, plan: Plan) -> None:
        """The table has another shape than a chunk was read with: read it again."""
        for window in self.loader.windows:
            if window.table.oid == plan.relation.oid:
                window.reshaped(plan.table)

    def _read_again(self, table: TableLoad, plan: Plan, data: bytes) -> None:
        """A moved row with unsent values: its new key may lie in a range that was handed on without them."""
        key = new_key_texts(plan, data)
        if key is None:
            self.loader.start_over(table)
        else:
            self.loader.again(table, [key])

    def moved(self, plan: Plan, data: bytes) -> bool:
        """A row that was handed on under a new key without its unsent values, which no reader need have under that
        key, is read again once its transaction has ended. False: it will be read in any case, or was seen to."""
        relation = plan.relation
        tables = self._of(relation.oid)
        if relation.oid not in self.progress.loaded or any(table.fresh for table in tables):
            return False
        load = self.progress.moved()
        table = next((table for table in tables if load and table in load.tables), None)
        if table is None:
            names = [column.name for column in plan.table.key_columns]
            table = TableLoad(relation.oid, relation.schema, relation.table, [Part(ended=True)], names, fresh=False)
            if load is None:
                load = Load("cdcworker.moved", "moved", started_ms=time.time_ns() // 1_000_000)
                self.progress.loads.append(load)
            load.tables.append(table)
            self.loader.moves += 1
        if table.parts:
            self._read_again(table, plan, data)
        return True

    # -- boundaries of the stream -----------------------------------------------------------------------------------

    def committed(self, xid: int) -> None:
        """A transaction has been delivered, whole or in part: it comes with each of its parts."""
        unseen = self.progress.unseen
        if self.progress.loads and (not unseen or unseen[-1] != xid):
            unseen.append(xid)

    def step(self, safe_lsn: int) -> list[Change | Ready]:
        """`passed`, with orders before it: the next rows are on their way while what was read is written."""
        self.loader.collect()
        self.loader.pump()
        out = self.passed(safe_lsn)
        self.loader.pump()
        return out

    def passed(self, safe_lsn: int) -> list[Change | Ready]:
        """Everything before `safe_lsn` has been delivered: rows whose boundary this is, and no others."""
        for oid in [oid for oid, skip in self._skips.items() if skip.hw <= safe_lsn]:
            del self._skips[oid]
            del self.progress.skips[str(oid)]
        self.loader.collect()
        if not self.progress.loads:
            self.progress.unseen.clear()
            return []
        out: list[Change | Ready] = []
        weight = 0
        for window in list(self.loader.windows):
            if weight >= PASSED_BYTES_MAX:
                break
            if window.chunk is None or window not in self.loader.windows or not is_first(window, self.loader.windows):
                continue
            if window.void:
                self.loader.drop(window)
            elif safe_lsn >= window.chunk.view.hw:
                weight += window.chunk.size + ROW_BYTES * window.chunk.count
                out += self._close(window, safe_lsn)
        return out

    def is_behind(self, safe_lsn: int) -> bool:
        """Rows wait for a boundary that has not come yet."""
        return any(window.chunk and window.chunk.view.hw > safe_lsn for window in self.loader.windows)

    def to_json(self) -> JsonObject:
        if len(self.progress.unseen) > UNSEEN_MAX:
            self.loader.prune(self._current().sees_delivered)
        return self.progress.to_json()

    # -- windows ----------------------------------------------------------------------------------------------------

    def _close(self, window: Window, safe_lsn: int) -> list[Change | Ready]:
        """The rows that nothing newer has touched, and the progress that they mean."""
        loader, load, table, chunk = self.loader, window.load, window.table, window.chunk
        assert chunk
        hit("snapshot.before_emit")
        # At the boundary: the stream's own rows of the shape before have been handed on.
        self.check(chunk.plan)
        loader.windows.remove(window)
        before = self.progress.rows
        stamp = self.stamp(chunk.plan, chunk.view, safe_lsn)
        with Named(chunk.plan):
            changes = stamped(chunk.left(), stamp, self.writer)
        table.rows += self.progress.rows - before
        table.bytes += chunk.size
        if window.part is None:
            table.again = table.again[len(window.keys) :]
            loader.again(table, chunk.unread)
        else:
            window.part.last = list(chunk.last) if chunk.last is not None else window.part.last
            window.part.ended = chunk.ended
        loader.moves += 1
        loader.again(table, window.again)
        loader.finish_if_done(load, table)
        return changes

    def stamp(self, plan: Plan, view: View, safe_lsn: int) -> Stamp:
        """Makes changes at the boundary `safe_lsn`."""
        return Stamp(self.progress, self._template, plan, view, safe_lsn)

    # -- tables without a key ---------------------------------------------------------------------------------------

    def read_keyless(self, view: View, load: Load, table: TableLoad) -> None:
        """All rows of the table have been handed on: leave out what they hold already."""
        self._skips[table.oid] = Skip(view.snap, view.hw)
        self.progress.skips[str(table.oid)] = [str(view.snap), view.hw]
        self.loader.finish(load, table)
