"""What is read next, by whom and how fast: ranges of tables are given to connections, results are taken back."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

from cdcworker.connectors.capture.errors import CaptureErrors
from cdcworker.connectors.capture.snapshot.chunk_window import ChunkWindow
from cdcworker.connectors.capture.snapshot.chunks import (
    ROWS_MAX,
    ROWS_MIN,
    Chunk,
    ChunkRequest,
    KeyChanged,
    NotVisibleYet,
    RequiredVisibility,
    RowReader,
    TableGone,
    TableKeyless,
    TableLocked,
    TableSurvey,
)
from cdcworker.connectors.capture.snapshot.progress import (
    AGAIN_BYTES_MAX,
    AGAIN_ROWS_MAX,
    KeyRange,
    SnapshotLoad,
    SnapshotProgress,
    TableLoad,
)
from cdcworker.connectors.capture.snapshot.reader_pool import Executor
from cdcworker.connectors.capture.snapshot.visibility import TransactionId
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit

log = logging.getLogger(__name__)

AGAIN_CHUNK_ROWS: Final = 500
"""The most single keys that are read again in one chunk."""
RETRY_FIRST_S: Final = 0.002
"""How long a table that waits is left alone at first."""
RETRY_S: Final = 0.1
"""How long it is left alone at most."""
LOCKED_S: Final = 1.0
"""The same for a table that somebody has locked."""
AFTER_ERROR_S: Final = 2.0
"""The same for a table that could not be read."""
LOG_WAIT_S: Final = 10.0
"""A wait is logged once it is longer than this, and not more often."""
DIVIDE_CHUNKS_MIN: Final = 8
"""A table of fewer chunks is not worth dividing into ranges."""
LOOK_EVERY_S: Final = 1.0
"""Between two looks at the load of the database."""
SMALL_BYTES: Final = 64 * 1024
"""A table up to this size on disk is a small one. Its rows as text may be more: a chunk that is larger than twice this ends early,
and the table is no small one any more."""
SMALL_AHEAD: Final = 32
"""How many of the next tables are looked at before their turn: the small ones among them are read at once, so that one boundary and
one Kafka transaction serve many. # INV-10"""
OLDER: Final = "older transactions"
LOCKED: Final = "a lock on the table"
"""The first part of the reason; who holds the lock follows, where that is known."""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """The limits of what is read at the same time. # INV-10"""

    threads: int = 1
    chunk_bytes: int = 2 * 1024 * 1024
    inflight_bytes: int = 8 * 1024 * 1024

    @property
    def windows(self) -> int:
        return 4 * self.threads + 4 + SMALL_AHEAD


class ChunkScheduler:
    """Orders reads and takes what was read; `windows` are those that are open, in the order of their opening.

    Loads are taken by turns, and the tables of one in their order. A load of `moved` rows reads what came under a new key without all of
    its values; its `floor` is the place behind which a read sees them. `unseen` transactions were delivered before their commits were
    visible, `exempt` ones need not have ended. A `keyless` table is read whole. Of a `repaired` one only rows that were asked for are read.
    DESIGN.md says why.
    """

    def __init__(
        self,
        progress: SnapshotProgress,
        executor: Executor,
        limits: ReadLimits,
        errors: CaptureErrors,
        is_busy: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        bind: Callable[[SnapshotLoad], None] = lambda load: None,
    ) -> None:
        """`bind` sets the floor of a load of moved rows, before a whole table is read for it. `is_busy` tells whether the database
        is too busy to be read now."""
        self.progress = progress
        self._again_bytes = progress.again_bytes()
        self.windows: list[ChunkWindow] = []
        self.keyless: tuple[SnapshotLoad, TableLoad] | None = None
        """A table without a key whose turn it is: it is read whole, by whoever reads the stream."""
        self.moves = 0
        """Grows with every step of progress: a step is worth a position even when it has brought no rows."""
        self._executor = executor
        self._limits = limits
        self._errors = errors
        self._is_busy = is_busy
        self._bind_floor = bind
        self._clock = clock
        self._too_busy, self._looked_at = False, float("-inf")
        self._logged_at = 0.0
        self._next_load = 0

    def note_progress(self) -> None:
        """Says that the progress has changed: the next position is stored although it brings no rows."""
        self.moves += 1

    # -- orders -----------------------------------------------------------------------------------------------------

    def could_read(self) -> bool:
        """Returns whether a read could be ordered if a boundary came now."""
        return self._executor.free > 0 and next(self._orders(), None) is not None

    def order_reads(self) -> None:
        """Called at a boundary of the stream. Orders what can be read now, one after the other, since each takes room
        from the next."""
        for order in self._orders():
            if self._executor.free <= 0:
                return
            order()

    def _orders(self) -> Iterator[Callable[[], None]]:
        now = self._clock()
        loads, turn = self.progress.loads, self._next_load
        for number in range(len(loads)):
            load = loads[(turn + number) % len(loads)]
            if load.paused or now < load.next_at or (load.rows_per_s and self._is_reading(load)):
                continue
            load.waits_for = "the load of the database" if self._database_is_busy(now) else ""
            if load.waits_for:
                continue
            threads = self._limits.threads
            for place, table in enumerate(load.tables[: threads if load.rows_per_s else threads + SMALL_AHEAD]):
                if place < threads or self._may_go_ahead(table):
                    yield from self._orders_of(load, table, now)

    @staticmethod
    def _may_go_ahead(table: TableLoad) -> bool:
        """Returns whether a table may be read before its turn: a small one, or one whose size is not known yet. One
        that is locked would keep readers from the others."""
        return not table.waits_for.startswith(LOCKED) and (table.is_small or not (table.parts or table.keyless))

    def _orders_of(self, load: SnapshotLoad, table: TableLoad, now: float) -> Iterator[Callable[[], None]]:
        if table.busy or now < table.retry_at or self.keyless is not None:
            return
        if table.keyless:
            yield lambda: self._set_keyless(load, table)
        elif not table.parts:
            yield lambda: self._survey(load, table)
        else:
            yield from self._windows_of(load, table)

    def _windows_of(self, load: SnapshotLoad, table: TableLoad) -> Iterator[Callable[[], None]]:
        own = [window for window in self.windows if window.table is table]
        if table.again and not any(window.part is None for window in own):
            yield lambda: self._open(ChunkWindow(load, table, None, table.again[:AGAIN_CHUNK_ROWS]), None)
        for part in table.parts:
            ahead = [window for window in own if window.part is part]
            last = ahead[-1] if ahead else None
            if part.ended or (last and (last.chunk is None or last.void or last.chunk.ended)):
                continue
            if not self._has_room(self._room_for(table)):
                continue
            assert last is None or last.chunk is not None
            after = list(last.chunk.last) if last and last.chunk and last.chunk.last else part.last
            yield lambda part=part, after=after: self._open(ChunkWindow(load, table, part), after)  # type: ignore[misc]

    def _has_room(self, wanted: int) -> bool:
        if not self.windows:
            return True
        held = sum(window.size if window.chunk else self._room_for(window.table) for window in self.windows)
        return len(self.windows) < self._limits.windows and held + wanted <= self._limits.inflight_bytes

    def _room_for(self, table: TableLoad) -> int:
        """Returns about how many bytes a chunk of the table will need."""
        return min(SMALL_BYTES, self._limits.chunk_bytes) if table.is_small else self._limits.chunk_bytes

    def _is_reading(self, load: SnapshotLoad) -> bool:
        return any(window.load is load and window.chunk is None for window in self.windows)

    def _database_is_busy(self, now: float) -> bool:
        if now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at, self._too_busy = now, self._is_busy()
        return self._too_busy

    def _set_keyless(self, load: SnapshotLoad, table: TableLoad) -> None:
        self._bind(load)
        self.keyless = (load, table)

    def _bind(self, load: SnapshotLoad) -> None:
        """Sets the floor of a load of moved rows. Its single keys need none: whoever sees a row under its new key sees the
        transactions before that too. The other rows of a table that is read whole may lack them."""
        if load.origin == "moved" and not load.floor:
            self._bind_floor(load)

    def _survey(self, load: SnapshotLoad, table: TableLoad) -> None:
        self._bind(load)
        table.busy = True
        bytes_min = DIVIDE_CHUNKS_MIN * self._limits.chunk_bytes
        parts = self._limits.threads if not load.rows_per_s else 1
        self._executor.give(table, lambda reader: reader.survey(table.table_id, parts, bytes_min))

    def _open(self, window: ChunkWindow, after: list[str] | None) -> None:
        """A window is open before its rows are read: from here on it is shown every event of its table."""
        load, table, part = window.load, window.table, window.part
        want = ChunkRequest(
            table.table_id,
            self.must_see(load),
            after=tuple(after) if after is not None else None,
            upto=tuple(part.upto) if part and part.upto is not None else None,
            keys=tuple(tuple(key) for key in window.keys),
            tells_absent=table.deletes,
            key_names=tuple(table.key),
            limit=self._row_limit(load, table),
            bytes_max=2 * self._room_for(table),
            filter=table.filter,
        )
        table.queued.difference_update(map(tuple, window.keys))
        self.windows.append(window)
        self._next_load += 1
        hit("snapshot.window_opened")
        self._executor.give(window, lambda reader: _chunk(reader, want))

    def must_see(self, load: SnapshotLoad) -> RequiredVisibility:
        return RequiredVisibility(load.floor, frozenset(load.exempt), tuple(self.progress.unseen))

    def _row_limit(self, load: SnapshotLoad, table: TableLoad) -> int:
        limit = int(self._limits.chunk_bytes / table.width) if table.width else ROWS_MIN
        return max(1, min(limit, ROWS_MAX, load.rows_per_s or ROWS_MAX))

    # -- results ----------------------------------------------------------------------------------------------------

    def take_results(self) -> None:
        """Called at a boundary of the stream. Takes the chunks that were read. Raises the CdcError that ends the
        task."""
        for token, result in self._executor.take():
            if isinstance(token, ChunkWindow):
                if token in self.windows:
                    self._take_chunk(token, result)
            elif isinstance(token, TableLoad):
                token.busy = False
                self._take_survey(token, result)

    def _take_chunk(self, window: ChunkWindow, result: Any) -> None:
        load, table = window.load, window.table
        if isinstance(result, BaseException):
            self.windows.remove(window)
            self._handle_failure(load, table, result)
            return
        window.read(result)
        self.prune(result.view.snap.sees_delivered)
        self._end_wait(table)
        if result.count and not window.keys:
            width = result.size / result.count
            table.width = max(width, table.width / 2)
        if load.rows_per_s:
            load.next_at = max(self._clock(), load.next_at) + result.count / load.rows_per_s
        table.is_small = table.is_small and result.ended
        if not table.key:
            table.key = list(result.key_names)

    def _take_survey(self, table: TableLoad, result: Any) -> None:
        load = next((load for load, known in self.progress.tables() if known is table), None)
        if load is None or table.parts:
            return
        if not isinstance(result, TableSurvey):
            self._handle_failure(load, table, result)
            return
        if result.keyless and table.filter:
            self._handle_failure(load, table, TableKeyless())
            return
        table.keyless = result.keyless
        lower: list[str] | None = None
        for bound in result.bounds if not result.keyless else ():
            table.parts.append(KeyRange(lower, list(bound)))
            lower = list(bound)
        if not result.keyless:
            table.parts.append(KeyRange(lower))
            table.is_small = result.size is not None and result.size <= SMALL_BYTES

    def _handle_failure(self, load: SnapshotLoad, table: TableLoad, result: Any) -> None:
        """Decides what follows from an error that kept rows from being read."""
        if isinstance(result, TableLocked):
            self.wait(table, ": ".join(filter(None, (LOCKED, result.holders))), LOCKED_S)
        elif isinstance(result, NotVisibleYet):
            self.wait(table, OLDER)
        elif isinstance(result, TableGone):
            log.info("table is gone, or not captured any more table=%s", table.full_name)
            self.finish(load, table, loaded=False)
        elif isinstance(result, TableKeyless) and table.filter:
            self._handle_failure(load, table, self._in_part(table))
        elif isinstance(result, TableKeyless | KeyChanged) and table.repaired:
            self._handle_failure(load, table, self._other_key(table))
        elif isinstance(result, TableKeyless):
            self.start_over(table)
            table.keyless = True
        elif isinstance(result, KeyChanged):
            self.start_over(table)
        elif isinstance(result, CdcError) and result.retriable:
            if table.waits_for != result.code:
                log.warning("rows not read, tried again table=%s error=%s", table.full_name, result)
            self.wait(table, result.code, AFTER_ERROR_S)
        elif isinstance(result, CdcError) and load.origin in ("request", "signal"):
            self.end(load, "FAILED", result)
        elif isinstance(result, BaseException):
            raise result

    def _in_part(self, table: TableLoad) -> CdcError:
        """Returns the error for a table without a key of which a condition chooses rows: they cannot be told from rows that were
        handed on before, so readers have to empty the table first."""
        text = "a table without a key can only be read whole, without a condition"
        return CdcError(self._errors.snapshot_refused, text, where={"table": table.full_name})

    def _other_key(self, table: TableLoad) -> CdcError:
        """Returns the error for rows that were asked for by columns that are not the table's key, or are its key no more."""
        text = "the columns by which rows were asked for are not the table's key"
        return CdcError(self._errors.snapshot_refused, text, where={"table": table.full_name})

    def defer_keyless(self, load: SnapshotLoad, table: TableLoad, why: Exception) -> None:
        """Notes that the table without a key could not be read now."""
        self.keyless, table.keyless = None, False
        self._handle_failure(load, table, why)

    def wait(self, table: TableLoad, reason: str, most_s: float = RETRY_S) -> None:
        """Leaves the table alone for a while, a short one at first: a commit becomes visible a moment after it is in the log."""
        now = self._clock()
        table.waits_for = reason
        table.waiting_since = table.waiting_since or now
        table.retry_at = now + min(most_s, RETRY_FIRST_S + now - table.waiting_since)
        if now - table.waiting_since > LOG_WAIT_S and now - self._logged_at > LOG_WAIT_S:
            self._logged_at = now
            log.warning("snapshot waits table=%s for=%s seconds=%d", table.full_name, reason, now - table.waiting_since)

    def _end_wait(self, table: TableLoad) -> None:
        table.waits_for, table.waiting_since = "", None

    def prune(self, sees: Callable[[TransactionId], bool]) -> None:
        """Forgets the delivered transactions that a snapshot sees: every later one sees them too."""
        self.progress.unseen = [one for one in self.progress.unseen if not sees(one)]

    # -- ends -------------------------------------------------------------------------------------------------------

    def drop(self, window: ChunkWindow) -> None:
        """Drops a window, and the windows of its range that were read ahead of it: all are read again."""
        part = window.part
        self.windows = [w for w in self.windows if w is not window and (part is None or w.part is not part)]

    def again(self, table: TableLoad, keys: list[list[str]]) -> None:
        """Has the rows of these keys read again; of too many, the whole table."""
        new = {tuple(key): key for key in keys if tuple(key) not in table.queued}
        table.again.extend(new.values())
        table.queued.update(new)
        self._again_bytes += sum(len(json.dumps(key)) + 2 for key in new)
        if table.repaired:
            # They are among those that were asked for, whose number is bounded; no other row was.
            return
        if self._again_bytes > AGAIN_BYTES_MAX:
            # Some have been read since.
            self._again_bytes = self.progress.again_bytes()
        if len(table.again) > AGAIN_ROWS_MAX or self._again_bytes > AGAIN_BYTES_MAX:
            self.start_over(table)
            self._again_bytes = self.progress.again_bytes()

    def start_over(self, table: TableLoad) -> None:
        """Reads the table again from its first row. A table without a key, whose rows cannot be told apart, is then
        taken back first."""
        log.warning("snapshot of a table restarts table=%s", table.full_name)
        if table.rows:
            table.attempt += 1
        table.start_over()
        self.windows = [window for window in self.windows if window.table is not table]

    def finish_if_done(self, load: SnapshotLoad, table: TableLoad) -> None:
        if table.ended and all(window.table is not table for window in self.windows):
            self.finish(load, table, loaded=not table.repaired)

    def finish(self, load: SnapshotLoad, table: TableLoad, *, loaded: bool = True) -> None:
        """Ends the load of a table. `loaded`: all its rows have been read; else it is not there any more, or only some were
        asked for."""
        self.windows = [window for window in self.windows if window.table is not table]
        self.progress.table_done(load, table, loaded=loaded)
        self.keyless = None
        self.moves += 1
        if loaded and load.origin != "moved":
            log.info(
                "table loaded table=%s id=%d rows=%d left=%d",
                table.full_name,
                table.table_id,
                table.rows,
                len(load.tables),
            )
        if not load.tables:
            self.end(load, "COMPLETED")

    def forget_gaps(self, members: Mapping[int, int]) -> set[int]:
        """Does what `SnapshotProgress.forget_gaps` does, and stops reading the tables that it forgets."""
        back = self.progress.forget_gaps(members)
        self.drop_unlisted_tables()
        return back

    def forget_all_but(self, captured: AbstractSet[int]) -> None:
        """Does what `SnapshotProgress.forget_all_but` does, and stops reading the tables that it forgets."""
        if self.progress.forget_all_but(captured):
            self.drop_unlisted_tables()

    def drop_unlisted_tables(self, state: str = "COMPLETED") -> None:
        """Stops reading the tables that belong to no load any more, and ends the loads that have no table left."""
        left = [table for _, table in self.progress.tables()]
        self.windows = [window for window in self.windows if window.table in left]
        if self.keyless is not None and self.keyless[1] not in left:
            self.keyless = None
        self.moves += 1
        for load in [load for load in self.progress.loads if not load.tables]:
            self.end(load, state)

    def add(self, load: SnapshotLoad) -> None:
        self.progress.loads.append(load)
        self.moves += 1
        if not load.tables:
            self.end(load, "COMPLETED")

    def end(self, load: SnapshotLoad, state: str, error: CdcError | None = None) -> None:
        self.windows = [window for window in self.windows if window.load is not load]
        if self.keyless is not None and self.keyless[0] is load:
            self.keyless = None
        self.progress.end(load, state, time.time_ns() // 1_000_000, error.to_dict() if error else None)
        self.moves += 1
        level = logging.DEBUG if load.origin == "moved" else logging.INFO
        log.log(level, "snapshot ended id=%s state=%s rows=%d error=%s", load.id, state, load.rows_total, error)


def _chunk(reader: RowReader, want: ChunkRequest) -> Chunk:
    return reader.chunk(want)
