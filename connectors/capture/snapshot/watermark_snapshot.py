"""Snapshots by watermark chunks, exact without a long transaction, in parallel and resumable by chunk.

A chunk is a key range, read in one short transaction with snapshot S by a connection of its own, beside the stream.

1. Its window is opened at a boundary of the stream. Every transaction that was delivered before must be visible in S,
   else it is read again. From then on it is shown every event of its table.
2. An event of a transaction that S does not see drops the row of its key: the event is newer.
3. At the first boundary of the stream at or behind the place `hw` (the end of the log when S was taken) every transaction
   that S sees has been delivered. The rows that are left are handed on there: after everything before that boundary,
   before everything behind it. In PostgreSQL their position is (boundary - 1, 2^31 - 1, n): commit records lie at or behind the boundary.
4. Progress is part of the position and so of the Kafka transaction that holds the rows. After a kill the chunk is
   read again; what was deleted meanwhile is deleted by the stream, which resumes at the same position.

A row whose newer event left an unchanged value out (PostgreSQL: TOAST) is read again by its key (`again`), as is one that a skipped operation
touched, and after the load a row whose key changed while such a value was left out (`moved`): what the reader of its new
key has of it is not known. Transactions older than the stream have ids below `floor`: chunks wait until S sees them all.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any, Final, Protocol

from cdcworker.connectors.capture.snapshot.chunk_scheduler import ChunkScheduler
from cdcworker.connectors.capture.snapshot.chunk_window import ChunkWindow, is_first, touch_of
from cdcworker.connectors.capture.snapshot.chunks import ReadView
from cdcworker.connectors.capture.snapshot.observer import PlansTable, RowEvent
from cdcworker.connectors.capture.snapshot.progress import KeyRange, SnapshotLoad, SnapshotProgress, TableLoad
from cdcworker.connectors.capture.snapshot.visibility import LogPlace, TransactionId, Visibility
from cdcworker.schemas.change import Change, EncodedRecords, JsonObject
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
class SkippedEvents:
    """Events of a table without a key that its rows hold already: those of transactions that `snap` sees."""

    snap: Visibility
    hw: LogPlace


class SnapshotSource(Protocol):
    """What a source knows of its own rows and transactions."""

    def current(self) -> Visibility:
        """Returns what a read would see now."""

    def visibility(self, stored: str) -> Visibility:
        """Returns the visibility that was stored as its `str()`."""

    def place(self, stored: Any) -> LogPlace:
        """Returns the place of the log that was stored as `stored_place` has it."""

    def stored_place(self, place: Any) -> Any:
        """Returns a place of this source's log as a JSON value."""

    def new_key(self, plan: Any, message: Any) -> list[str] | None:
        """The texts of the key that an update has given to a row; None where the message does not hold all of it. `plan` and
        `message` are those of an event of this source."""

    def emit(self, chunk: Any, position: Any) -> list[Change | EncodedRecords]:
        """The rows that are left of a chunk that this source's own reader has made, as changes or records at the boundary
        `position`, a place of the log. Each counts in the progress. CdcError when rows of this shape may not be handed on."""


class WatermarkSnapshot:
    """The state of all loads beside the stream; an `Observer` of its events. Called at boundaries but for `event`."""

    def __init__(self, loader: ChunkScheduler, source: SnapshotSource, completes: bool = False) -> None:
        """`completes`: each row is read again that was handed on without a value that was not sent."""
        self.progress: SnapshotProgress = loader.progress
        self.loader = loader
        self._source = source
        self._completes = completes
        skips = self.progress.skips.items()
        self._skips = {
            int(table): SkippedEvents(source.visibility(snap), source.place(hw)) for table, (snap, hw) in skips
        }
        self._transaction: TransactionId = 0
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
        """Returns whether all rows are read and no table is left whose rows are to be read later."""
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

    def began(self, transaction: TransactionId) -> None:
        self._transaction = transaction
        for window in self.loader.windows:
            window.began(transaction)

    def event(self, plan: PlansTable, event: RowEvent) -> bool:
        table_id = plan.table.table_id
        skip = self._skips.get(table_id)
        if skip and skip.snap.sees(self._transaction):
            return False
        tables = self._of(table_id)
        if not tables:
            return True
        if not plan.table.key:
            # Nothing tells its rows apart: until they have been read, they stand for its events.
            return not any(table.fresh for table in tables)
        windows = [window for window in self.loader.windows if window.table.table_id == table_id]
        if windows:
            touch = touch_of(self._transaction, plan, event)
            for window in windows:
                window.touched(touch)
        if event.unchanged and (event.is_partial or event.key_changed or self._completes):
            for table in tables:
                if table.parts and table.fresh:
                    self._read_again(table, plan, event.data)
        return True

    def _of(self, table_id: int) -> list[TableLoad]:
        if self._tables_at != self.loader.moves:
            self._tables_at, self._tables = self.loader.moves, {}
            for _, table in self.progress.tables():
                self._tables.setdefault(table.table_id, []).append(table)
        return self._tables.get(table_id, [])

    def reshaped(self, plan: PlansTable) -> None:
        """The table has another shape than a chunk was read with: read it again."""
        for window in self.loader.windows:
            if window.table.table_id == plan.table.table_id:
                window.reshaped(plan.table)

    def undone(self) -> None:
        """Rows may have left a chunk for events that are not handed on: read it again."""
        for window in self.loader.windows:
            window.undone()

    def _read_again(self, table: TableLoad, plan: PlansTable, message: Any) -> None:
        """A row with unsent values: its key may lie in a range that was handed on without them, or whose record with them
        does not stay."""
        key = self._source.new_key(plan, message)
        if key is None:
            self.loader.start_over(table)
        else:
            self.loader.again(table, [key])

    def moved(self, plan: PlansTable, message: Any) -> bool:
        """A row that was handed on without unsent values which no reader need have, as under a new key, is read again once its
        transaction has ended. False: it will be read in any case, or was seen to."""
        table_id = plan.table.table_id
        tables = self._of(table_id)
        if table_id not in self.progress.loaded or any(table.fresh for table in tables):
            return False
        load = self.progress.moved()
        table = next((table for table in tables if load and table in load.tables), None)
        if table is None:
            schema, name = plan.table.path
            names = [column.name for column in plan.table.key_columns]
            table = TableLoad(table_id, schema, name, [KeyRange(ended=True)], names, fresh=False)
            if load is None:
                load = SnapshotLoad("cdcworker.moved", "moved", started_ms=time.time_ns() // 1_000_000)
                self.progress.loads.append(load)
            load.tables.append(table)
            self.loader.note_progress()
        if table.parts:
            self._read_again(table, plan, message)
        return True

    # -- boundaries of the stream -----------------------------------------------------------------------------------

    def committed(self, transaction: TransactionId) -> None:
        """A transaction has been delivered, whole or in part: it comes with each of its parts."""
        unseen = self.progress.unseen
        if self.progress.loads and (not unseen or unseen[-1] != transaction):
            unseen.append(transaction)

    def step(self, position: LogPlace) -> list[Change | EncodedRecords]:
        """`passed`, with orders before it: the next rows are on their way while what was read is written."""
        self.loader.take_results()
        self.loader.order_reads()
        out = self.passed(position)
        self.loader.order_reads()
        return out

    def passed(self, position: LogPlace) -> list[Change | EncodedRecords]:
        """Everything before `position` has been delivered: rows whose boundary this is, and no others."""
        for table_id in [table_id for table_id, skip in self._skips.items() if position >= skip.hw]:
            del self._skips[table_id]
            del self.progress.skips[str(table_id)]
            # The progress has changed: it is stored even where no further record comes.
            self.loader.moves += 1
        self.loader.take_results()
        if not self.progress.loads:
            self.progress.unseen.clear()
            return []
        out: list[Change | EncodedRecords] = []
        weight = 0
        for window in list(self.loader.windows):
            if weight >= PASSED_BYTES_MAX:
                break
            if window.chunk is None or window not in self.loader.windows or not is_first(window, self.loader.windows):
                continue
            if window.void:
                self.loader.drop(window)
            elif position >= window.chunk.view.hw:
                weight += window.chunk.size + ROW_BYTES * window.chunk.count
                out += self._close(window, position)
        return out

    def is_behind(self, position: LogPlace) -> bool:
        """Rows wait for a boundary that has not come yet."""
        return any(window.chunk and not position >= window.chunk.view.hw for window in self.loader.windows)

    def to_json(self) -> JsonObject:
        if len(self.progress.unseen) > UNSEEN_MAX:
            self.loader.prune(self._source.current().sees_delivered)
        return self.progress.to_json()

    # -- windows ----------------------------------------------------------------------------------------------------

    def _close(self, window: ChunkWindow, position: LogPlace) -> list[Change | EncodedRecords]:
        """The rows that nothing newer has touched, and the progress that they mean."""
        loader, load, table, chunk = self.loader, window.load, window.table, window.chunk
        assert chunk
        hit("snapshot.before_emit")
        before = self.progress.rows
        changes = self._source.emit(chunk, position)
        loader.windows.remove(window)
        table.rows += self.progress.rows - before
        table.bytes += chunk.size
        if window.part is None:
            table.again = table.again[len(window.keys) :]
            loader.again(table, chunk.unread)
        else:
            window.part.last = list(chunk.last) if chunk.last is not None else window.part.last
            window.part.ended = chunk.ended
        loader.note_progress()
        loader.again(table, window.again)
        loader.finish_if_done(load, table)
        return changes

    # -- tables without a key ---------------------------------------------------------------------------------------

    def read_keyless(self, view: ReadView, load: SnapshotLoad, table: TableLoad) -> None:
        """All rows of the table have been handed on: leave out what they hold already."""
        self._skips[table.table_id] = SkippedEvents(view.snap, view.hw)
        self.progress.skips[str(table.table_id)] = [str(view.snap), self._source.stored_place(view.hw)]
        self.loader.finish(load, table)
