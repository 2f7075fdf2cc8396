"""The source task: one slot, one stream, a snapshot beside it; batches that end at the source's commits."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence

import psycopg
from cdcworker.connectors.api import TaskContext
from cdcworker.connectors.postgres import ahead as aheads
from cdcworker.connectors.postgres import paces, turning
from cdcworker.connectors.postgres import slot as slots
from cdcworker.connectors.postgres.changes import OWN_PREFIX, Changes
from cdcworker.connectors.postgres.config import Settings
from cdcworker.connectors.postgres.connection import application_name, connect
from cdcworker.connectors.postgres.errors import translate
from cdcworker.connectors.postgres.fallback import fall_back, recover
from cdcworker.connectors.postgres.heart import Heart
from cdcworker.connectors.postgres.jobs import Jobs
from cdcworker.connectors.postgres.keyless import read_whole
from cdcworker.connectors.postgres.lane import Lane, native
from cdcworker.connectors.postgres.monitor import Monitor
from cdcworker.connectors.postgres.position import StoredPosition
from cdcworker.connectors.postgres.quarantine import may_hold
from cdcworker.connectors.postgres.rounds import Rounds
from cdcworker.connectors.postgres.session import Session, open_session
from cdcworker.connectors.postgres.spool import NotAhead
from cdcworker.connectors.postgres.standby import PUSH
from cdcworker.connectors.postgres.stream import ReplicationStream, Rows
from cdcworker.schemas.change import Batch, Change, JsonObject, Ready
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit
from cdcworker.schemas.shape import Shaper

log = logging.getLogger(__name__)

COMMIT, MESSAGE = ord("C"), ord("M")


class PostgresTask:
    """Called from one thread; `open` may be called again only on a new object."""

    def __init__(self, settings: Settings, context: TaskContext) -> None:
        self._settings = settings
        self._context = context
        self._session: Session | None = None
        self._lane: Lane | None = None
        self._rows: Rows | None = None
        self._application = application_name(context.group, context.connector, context.task)
        self._first = True
        self._boundary = 0
        self._bytes = 0
        self._boundary_bytes = 0
        self._ts_us = 0
        self._stored_safe = -1
        self._stored_moves = 0
        self._stored_at = 0.0
        self._watermark_at = 0.0
        self._behind_since = 0.0
        self._rounds = Rounds(settings)
        self._jobs = Jobs(context.jobs)
        self._heart = Heart(settings)
        self._monitor = Monitor(context, self._jobs, self._heart.report)
        self._keyless: Iterator[Batch] | None = None
        self._unfinished = False
        """Changes were handed out of a transaction that had not ended: its end is worth a position."""
        self._troubles: dict[str, CdcError] = {}

    # -- SourceTask -------------------------------------------------------------------------------------------------

    def holds(self, error: CdcError) -> bool:
        """Whether the table that this error names may be held back while the others go on."""
        return may_hold(self._settings, error)

    def hold(self, troubles: Mapping[str, CdcError]) -> None:
        """Before `open`: these tables are held back from now on."""
        self._troubles = dict(troubles)

    def open(self, position: JsonObject | None) -> None:
        stored = StoredPosition.from_json(position) if position is not None else None
        self._session = open_session(self._settings, self._context, self._application, stored, self._troubles)
        self._first = position is None or self._session.position_changed
        if self._session.changes:
            self._session.changes.resume_lsn = self._session.position.commit_lsn
            self._session.changes.resume_part = self._session.position.part
            if self._session.changes.orders:
                self._session.changes.orders.stored = self._session.position.orders
        self._stored_safe = self._session.position.safe_lsn
        self._stored_at = time.monotonic()

    def lend(self, shaper: Shaper) -> None:
        """Rows may become records here: natively, where the core was built and is wanted."""
        changes, module = self._opened().changes, native() if self._settings.raw["decoder.native"] else None
        if changes is not None and module is not None:
            self._lane = Lane(changes, shaper, module)
            self._rows = self._take_rows
            self._opened().lend(shaper, module)

    def poll(self) -> Batch:
        session = self._opened()
        try:
            if self._first:
                self._first = False
                return self._with_position(session.emptied, idle=True)
            if session.complete or session.stream is None or session.changes is None:
                time.sleep(paces.POLL_S_MAX)
                return Batch(idle=True)
            if session.snapshot is not None and session.snapshot.loader.keyless:
                self._context.beat("a read of the snapshot", paces.READ_S_MAX)
            if self._keyless is None:
                self._open_window(session)
            if self._keyless is not None:
                return self._keyless_batch()
            dry = self._receive(session, session.changes)
            return self._batch(session.changes, dry)
        except psycopg.Error as exc:
            raise translate(exc) from exc

    def ack(self, position: JsonObject) -> None:
        session = self._opened()
        self._rounds.stored(position)
        if session.stream is None:
            return
        try:
            hit("postgres.before_confirm")
            session.stream.confirm(int(position["safe_lsn"]))  # INV-1
            hit("postgres.after_confirm")
            if session.complete:
                self._let_go(session)
        except CdcError as exc:
            # The next poll meets the same connection and says so; the position is stored already.
            log.info("confirmation failed error=%s", exc)

    def close(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        session.close()
        if self._settings.raw["slot.drop.on.stop"] and self._context.ending():
            self._drop_slot()

    # -- reading ----------------------------------------------------------------------------------------------------

    def _opened(self) -> Session:
        if self._session is None:
            raise RuntimeError("the task is not open")
        return self._session

    def _receive(self, session: Session, changes: Changes) -> bool:
        try:
            if session.fallback and not changes.in_transaction:
                recover(session, self._context, self._application)
            assert session.stream
            return self._advance(session.stream, changes)
        except NotAhead as exc:
            fall_back(session, self._context, self._application, exc)
            return False
        except CdcError as exc:
            raise turning.turned(session, self._context, exc) from exc

    def _advance(self, stream: ReplicationStream, changes: Changes) -> bool:
        dry = self._read(stream)
        if dry and not (changes.out and not changes.in_transaction):
            self._caught_up(stream, changes)
            # In the middle of a transaction the server may be silent for long: what has arrived is no reason to spin.
            unripe = not changes.out or (changes.in_transaction and not self._boundary)
            if unripe and stream.wait(self._wait_s(stream)):
                dry = self._read(stream)
        if dry:
            self._caught_up(stream, changes)
        return dry

    def _read(self, stream: ReplicationStream) -> bool:
        lane = self._lane
        if lane is None:
            return self._drain(stream)
        lane.begin()
        dry = self._drain(stream)
        lane.flush()
        return dry

    def _drain(self, stream: ReplicationStream) -> bool:
        """What a transaction holds that was sent ahead of its end, then what has arrived; True when that ran dry."""
        ahead = self._opened().ahead
        assert ahead
        while True:
            ahead.turned = False
            if ahead.replay is not None:
                if not all(map(self._take, ahead.replay)):
                    return False
                ahead.replay = None
            elif stream.receive(*((ahead.take, None) if ahead.inside else (self._take, self._rows))):
                return True
            elif not ahead.turned:
                return False

    def _take(self, data: bytes) -> bool:
        session = self._opened()
        changes = session.changes
        assert changes
        kind = (self._lane or changes).feed(data)
        self._bytes += len(data)
        if kind == COMMIT:
            return self._at_commit(session, changes)
        if kind == MESSAGE and changes.message_lsn > session.position.commit_lsn and not changes.in_transaction:
            # Every transaction that committed before the message has been delivered.
            session.position.commit_lsn = changes.message_lsn
            self._passed(session, changes, changes.message_lsn + 1)
        if kind in aheads.TURNS:
            assert session.ahead
            session.ahead.turned = True
            return False
        if kind == aheads.RELATION and session.ahead:
            session.ahead.described(data)
        return len(changes.out) < paces.BATCH_CHANGES_MAX and self._bytes < paces.BATCH_BYTES_MAX

    def _take_rows(self, buffer: bytearray, start: int, end: int) -> tuple[int, bool]:
        assert self._lane
        done = self._lane.feed_frames(buffer, start, end)
        self._bytes += done - start
        return done, self._bytes < paces.BATCH_BYTES_MAX

    def _at_commit(self, session: Session, changes: Changes) -> bool:
        commit = changes.commit
        assert commit
        assert session.stream
        position = session.position
        position.commit_lsn = max(position.commit_lsn, commit.commit_lsn)
        if position.part and position.part[0] <= commit.commit_lsn:
            position.part = position.orders = None
        session.stream.received = max(session.stream.received, commit.end_lsn)
        self._ts_us = commit.commit_us
        if session.snapshot:
            session.snapshot.committed(changes.last_xid)
        self._passed(session, changes, commit.end_lsn)
        if session.snapshot and session.snapshot.loader.keyless:
            return False
        bytes_max = paces.LANE_BYTES_MAX if self._lane else paces.BATCH_BYTES_MAX
        return len(changes.out) < paces.BATCH_CHANGES_MAX and self._bytes < bytes_max

    def _caught_up(self, stream: ReplicationStream, changes: Changes) -> None:
        """The stream is dry between two transactions: what the keep-alive says is true of us as well."""
        session = self._opened()
        if not changes.in_transaction and stream.keepalive_lsn > session.position.safe_lsn:
            self._ts_us = time.time_ns() // 1000
            self._passed(session, changes, stream.keepalive_lsn)

    def _passed(self, session: Session, changes: Changes, safe_lsn: int) -> None:
        """A boundary: everything that committed before `safe_lsn` has been delivered."""
        position = session.position
        position.safe_lsn = max(position.safe_lsn, safe_lsn)
        snapshot = session.snapshot
        if session.signals.pending:
            session.signals.carry_out(session)
        if snapshot and not snapshot.finished:
            changes.out.extend(snapshot.step(position.safe_lsn))
            if snapshot.finished:
                changes.observer = None
        self._boundary = len(changes.out)
        self._boundary_bytes = self._bytes

    # -- batches ----------------------------------------------------------------------------------------------------

    def _batch(self, changes: Changes, dry: bool) -> Batch:
        out = changes.out
        if changes.in_transaction:
            if not self._boundary:
                if len(out) < paces.BATCH_CHANGES_MAX and self._bytes < paces.BATCH_BYTES_MAX:
                    return Batch()
                changes.out, self._bytes = [], 0
                self._unfinished = True
                hit("postgres.part_read")
                return Batch(out, part=self._part(changes))
            changes.out = out[self._boundary :]
            out = out[: self._boundary]
            self._bytes -= self._boundary_bytes
        else:
            changes.out, self._bytes = [], 0
        self._boundary = self._boundary_bytes = 0
        self._session_complete()
        if out or self._unfinished:
            hit("postgres.read")
            return self._with_position(out, idle=dry)
        return self._without_changes(dry)

    def _part(self, changes: Changes) -> JsonObject:
        """Where the transaction could be resumed. Chunks of rows that are read from now on must see it."""
        session, part = self._opened(), changes.part
        assert part
        if session.snapshot:
            session.snapshot.committed(changes.last_xid)
        stored = session.position.part
        session.position.part = max(part, stored) if stored and stored[0] == part[0] else part
        counts, session.position.orders = (
            session.position.orders,
            dict(changes.orders.counts) if changes.orders else None,
        )
        position = session.position_json(self._ts_us)
        session.position.part, session.position.orders = stored, counts
        return position

    def _without_changes(self, dry: bool) -> Batch:
        session = self._opened()
        now = time.monotonic()
        moved = session.position.safe_lsn > self._stored_safe
        progressed = session.snapshot is not None and session.snapshot.moves != self._stored_moves
        overdue = self._heart.due(now) or (moved and now - self._stored_at >= self._settings.heartbeat_s)
        if session.complete or progressed or overdue:
            return self._with_position([], idle=dry)
        if now - self._watermark_at >= paces.WATERMARK_S:
            self._monitor.tick(session, now)
            self._watermark_at = now
            return Batch(watermark=self._watermark(), idle=dry)
        return Batch(idle=dry)

    def _with_position(self, out: Sequence[Change | Ready], *, idle: bool) -> Batch:
        session = self._opened()
        now = time.monotonic()
        self._unfinished = False
        if self._heart.due(now):
            out = [*out, *self._heart.beat(session, now)]
        self._monitor.count(sum(len(item.records) if isinstance(item, Ready) else 1 for item in out))
        self._monitor.tick(session, now)
        self._stored_at = self._watermark_at = now
        self._stored_safe = session.position.safe_lsn
        self._stored_moves = session.snapshot.moves if session.snapshot else 0
        return Batch(out, session.position_json(self._ts_us), self._watermark(), idle)

    def _watermark(self) -> JsonObject:
        """Every transaction whose commit record lies before `commit_lsn` has been handed on; of the tables that are
        `loading` not all rows yet."""
        session = self._opened()
        at = {"commit_lsn": session.position.safe_lsn, "ts_ms": (self._ts_us or time.time_ns() // 1000) // 1000}
        at |= session.settings.filters.share.told()
        loading = session.loading
        return {**at, "loading": loading} if loading else at

    # -- snapshot ---------------------------------------------------------------------------------------------------

    def _open_window(self, session: Session) -> None:
        """Between two transactions: take what was read, and have more read."""
        snapshot, changes = session.snapshot, session.changes
        if not snapshot or not changes or changes.in_transaction:
            return
        self._jobs.look(session)
        self._rounds.go(session)
        if snapshot.finished:
            snapshot.loader.collect()
        else:
            self._passed(session, changes, session.position.safe_lsn)
        if snapshot.loader.keyless and not changes.out:
            self._keyless = read_whole(session, *snapshot.loader.keyless, self._with_position)

    def _wait_s(self, stream: ReplicationStream) -> float:
        """How long to wait for the stream; while rows wait for their boundary the server is asked for it."""
        session = self._opened()
        if session.snapshot is None or not session.snapshot.active:
            return paces.POLL_S_MAX
        if not session.snapshot.is_behind(session.position.safe_lsn):
            self._behind_since = 0.0
            return paces.NUDGE_S
        now = time.monotonic()
        self._behind_since = self._behind_since or now
        if now - self._behind_since > paces.PUSH_S:
            self._behind_since = now
            session.catalog.execute(PUSH, (OWN_PREFIX,))
        stream.status(reply=True)
        return paces.NUDGE_S

    def _keyless_batch(self) -> Batch:
        assert self._keyless
        try:
            return next(self._keyless)
        except StopIteration:
            self._keyless = None
            return Batch()

    # -- the end ----------------------------------------------------------------------------------------------------

    def _session_complete(self) -> None:
        session = self._opened()
        if self._settings.snapshot_mode == "initial_only" and session.snapshot and session.snapshot.complete:
            session.complete = True

    def _let_go(self, session: Session) -> None:
        """Nothing is to be streamed after the rows: a slot that nobody reads would hold the log for ever."""
        session.close()
        session.stream = None
        self._drop_slot()

    def _drop_slot(self) -> None:
        try:
            with connect(self._settings, self._application) as connection:
                slots.take_over(connection, self._settings.slot, lambda: False)
                slots.drop(connection, self._settings.slot)
        except (CdcError, psycopg.Error) as exc:
            log.warning("slot not dropped slot=%s error=%s", self._settings.slot, translate(exc))
