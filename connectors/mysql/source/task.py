"""The source task: one stream of the binary log, a snapshot beside it; batches that end at the source's commits."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.capture.snapshot.jobs import SnapshotJobs
from cdcworker.connectors.capture.snapshot.watermark_snapshot import WatermarkSnapshot
from cdcworker.connectors.capture.snapshot.whole_table import read_whole
from cdcworker.connectors.capture.stream import limits
from cdcworker.connectors.capture.stream.heartbeat import Heartbeat
from cdcworker.connectors.capture.stream.position_pace import PositionPace
from cdcworker.connectors.capture.stream.signal_table import SignalStage
from cdcworker.connectors.capture.tables.table_quarantine import may_hold
from cdcworker.connectors.mysql.binlog.event_reader import Event
from cdcworker.connectors.mysql.binlog.format_description import FormatDescription
from cdcworker.connectors.mysql.binlog.plain_events import Heartbeat as ServerHeartbeat
from cdcworker.connectors.mysql.binlog.plain_events import Rotate
from cdcworker.connectors.mysql.config.settings import MySqlSettings
from cdcworker.connectors.mysql.errors import CAPTURE, CONNECTION_LOST
from cdcworker.connectors.mysql.server.steady_connection import translated
from cdcworker.connectors.mysql.source.captured_tables import incomplete
from cdcworker.connectors.mysql.source.heartbeat_action import make_heartbeat, run_action
from cdcworker.connectors.mysql.source.keyless_tables import KeylessTables
from cdcworker.connectors.mysql.source.periodic_checks import PeriodicChecks
from cdcworker.connectors.mysql.source.position import FilePlace, StoredPosition
from cdcworker.connectors.mysql.source.session import Session
from cdcworker.connectors.mysql.source.session_start import open_session
from cdcworker.connectors.mysql.source.task_report import TaskReport
from cdcworker.connectors.mysql.source_block import source_schema
from cdcworker.connectors.mysql.transport.dump_stream import DumpStream
from cdcworker.schemas import failpoints
from cdcworker.schemas.change import Change, EncodedRecords, JsonObject, PollBatch, Position
from cdcworker.schemas.errors import CdcError

log = logging.getLogger(__name__)

NOT_OPEN: Final = "the task is not open"
SILENT_S_MAX: Final = 60.0
"""A server sends its heartbeats far more often: one that sends nothing for so long is gone."""


class MySqlTask:
    """Called from one thread; `open` may be called again only on a new object."""

    def __init__(self, settings: MySqlSettings, context: TaskContext) -> None:
        self._settings = settings
        self._context = context
        self._session: Session | None = None
        self._rows_only = settings.snapshot_mode == "initial_only"
        self._first = True
        """The next poll returns a position at once, so that it is stored."""
        self._dry = False
        """Whether nothing was left to read when the stream was read last."""
        self._events: Iterator[Event] = iter(())
        """What is left of the events that were read last: a compressed transaction may hold more than a batch."""
        self._boundary = 0
        """How many of the decoder's changes stand before the last boundary."""
        self._bytes = 0
        """Of the events that the batch was made of."""
        self._ts_us = 0
        """The commit time of the last transaction."""
        self._made = 0
        """When the file that is being read was begun."""
        self._heard_at = time.monotonic()
        self._window_at = 0.0
        self._pace = PositionPace(settings.heartbeat_s)
        self._checks = PeriodicChecks(settings.raw["table.discovery.interval.ms"] / 1000)
        self._jobs = SnapshotJobs(context.jobs)
        self._heartbeat: Heartbeat = make_heartbeat(settings, source_schema(settings.product or "mysql"))
        self._report = TaskReport(context, self._jobs, self._heartbeat.report)
        self._keyless: Iterator[PollBatch] | None = None
        self._unfinished = False
        """Changes were handed out of a transaction that had not ended: its end is worth a position."""
        self._held_tables: dict[str, CdcError] = {}

    # -- SourceTask -------------------------------------------------------------------------------------------------

    def holds(self, error: CdcError) -> bool:
        """Returns whether the table that this error names may be held back while the others go on."""
        return "table" in error.where and may_hold(self._settings.raw, error, CAPTURE)

    @property
    def completes_rows(self) -> bool:
        """Tells whether rows are read again whose values were not all sent."""
        return self._settings.completes_rows

    def hold(self, tables: Mapping[str, CdcError]) -> None:
        """Called before `open`: these tables are left out from now on."""
        self._held_tables = dict(tables)

    def open(self, position: JsonObject | None) -> None:
        stored = StoredPosition.from_json(position) if position is not None else None
        self._session = open_session(self._settings, self._context, stored, self._held_tables)
        self._first = position is None or self._session.position_changed
        self._heard_at = now = time.monotonic()
        self._pace.begin(self._session.position.place, now)

    def poll(self) -> PollBatch:
        session = self._opened()
        with translated():
            if self._first:
                self._first = False
                return self._with_position(session, session.emptied, idle=True)
            stream = session.connections.stream
            if session.complete or stream is None:
                time.sleep(limits.POLL_S_MAX)
                return PollBatch(idle=True)
            return self._next(session, stream)

    def ack(self, position: JsonObject) -> None:
        """The server keeps its log whatever was read of it: nothing is told to it."""
        del position
        session = self._opened()
        if session.complete and session.connections.stream is not None:
            session.close()

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    # -- reading ----------------------------------------------------------------------------------------------------

    def _opened(self) -> Session:
        if self._session is None:
            raise RuntimeError(NOT_OPEN)
        return self._session

    def _next(self, session: Session, stream: DumpStream) -> PollBatch:
        snapshot, is_between = session.snapshot, session.decoder.transaction is None
        if snapshot is not None and snapshot.loader.keyless:
            self._context.beat("a read of the snapshot", limits.READ_S_MAX)
        if (self._keyless is None and snapshot is not None and is_between) and (
            snapshot.progress.loads
            or time.monotonic() >= self._window_at
            or self._context.jobs() is not self._jobs.seen
        ):
            self._open_window(session, snapshot)
        if self._keyless is not None:
            return self._keyless_batch()
        # What was read to its end is waited for before it is read again, also in the middle of a transaction.
        if self._dry and not stream.wait(self._wait_s(snapshot)):
            self._require_news()
            return self._batch(session, True)
        self._dry = self._read(session, stream)
        return self._batch(session, self._dry)

    def _read(self, session: Session, stream: DumpStream) -> bool:
        """Reads what has arrived, up to a full batch. Returns whether nothing is left to read."""
        if not self._feed(session):
            return False
        is_dry = stream.receive(partial(self._take, session))
        if stream.ended:
            raise CdcError(CONNECTION_LOST, "the server has ended the stream of its log")
        return is_dry

    def _take(self, session: Session, data: bytes, _wants_answer: bool) -> bool:
        """Decodes what the server sent as one event. Returns whether more may be read into this batch."""
        self._heard_at = time.monotonic()
        self._bytes += len(data)
        self._events = iter(session.state.events.read(data))
        return self._feed(session)

    def _feed(self, session: Session) -> bool:
        decoder = session.decoder
        for event in self._events:
            decoder.feed(event)
            if decoder.incomplete:
                found, decoder.incomplete = decoder.incomplete, []
                for plan, row in found:
                    incomplete(session, plan, row)
            if decoder.ended is not None:
                if not self._at_commit(session):
                    return False
            elif decoder.transaction is None:
                self._between(session, event)
            if self._is_full(session):
                return False
        return True

    def _is_full(self, session: Session) -> bool:
        return len(session.decoder.out) >= limits.BATCH_CHANGES_MAX or self._bytes >= limits.BATCH_BYTES_MAX

    def _between(self, session: Session, event: Event) -> None:
        """An event that belongs to no transaction."""
        body, place = event.body, session.state.events.place
        if isinstance(body, ServerHeartbeat):
            # There is nothing that was not read, up to a place behind events that are no transactions, as a file begins with.
            self._ts_us = time.time_ns() // 1000
            at = FilePlace(body.file, body.position, self._made)
            if body.file == place.file and at.is_behind(session.position.place):
                session.passed(at)
        elif isinstance(body, FormatDescription):
            self._made = event.header.timestamp
            if place.file == session.position.place.file:
                session.passed(session.position.place._replace(made=self._made))
        elif isinstance(body, Rotate) and not event.header.is_artificial:
            session.passed(FilePlace(place.file, place.position))

    def _at_commit(self, session: Session) -> bool:
        """Everything up to the end of a transaction is in the decoder's output. Returns whether more may be read."""
        decoder, snapshot = session.decoder, session.snapshot
        ended, decoder.ended = decoder.ended, None
        assert ended is not None
        session.ended(ended)
        place = session.state.events.place
        session.passed(FilePlace(place.file, place.position, self._made))
        self._ts_us = ended.commit_us
        if snapshot is not None and snapshot.progress.loads:
            snapshot.committed(ended.identity)
        self._passed(session)
        return snapshot is None or not snapshot.loader.keyless

    def _passed(self, session: Session) -> None:
        """A boundary: everything before it has been delivered."""
        decoder, snapshot = session.decoder, session.snapshot
        if session.signals.pending:
            assert session.loads
            text = f"{session.position.place.file}:{session.position.place.position}"
            session.signals.carry_out(SignalStage(session.loads, session.position.number, text))
        if snapshot and (snapshot.progress.loads or decoder.observer is not None):
            decoder.out.extend(snapshot.step(session.log_place))
            if snapshot.finished:
                decoder.observer = None
        self._boundary = len(decoder.out)

    def _require_news(self) -> None:
        if time.monotonic() - self._heard_at > SILENT_S_MAX:
            raise CdcError(CONNECTION_LOST, f"the server has sent nothing for {SILENT_S_MAX:.0f} s")

    # -- batches ----------------------------------------------------------------------------------------------------

    def _batch(self, session: Session, dry: bool) -> PollBatch:
        """Returns the decoder's changes up to the last boundary, or a part of a transaction that alone fills a batch."""
        decoder = session.decoder
        if decoder.transaction is not None and not self._boundary:
            return self._part(session) if self._is_full(session) else PollBatch()
        out = decoder.take(self._boundary if decoder.transaction is not None else None)
        self._boundary = self._bytes = 0
        if self._rows_only and session.snapshot and session.snapshot.complete:
            session.finish()
        if out or self._unfinished:
            if failpoints.active:
                failpoints.hit("mysql.read")
            return self._with_position(session, out, idle=dry)
        return self._without_changes(session, dry)

    def _part(self, session: Session) -> PollBatch:
        """Returns what was read of the transaction. Chunks of rows that are read from now on must see it."""
        transaction, self._bytes = session.decoder.transaction, 0
        out = session.decoder.take()
        if transaction is None or not out:
            return PollBatch()
        self._unfinished = True
        if session.snapshot:
            session.snapshot.committed(transaction.identity)
        if failpoints.active:
            failpoints.hit("mysql.part_read")
        return PollBatch(out, part=session.part_json(transaction, self._ts_us))

    def _without_changes(self, session: Session, dry: bool) -> PollBatch:
        now = time.monotonic()
        is_due = self._pace.is_due(session.position.place, session.moves, now)
        if session.complete or is_due or self._heartbeat.due(now):
            return self._with_position(session, [], idle=dry)
        if self._pace.tells(now):
            self._report.tick(session, now)
            return PollBatch(watermark=self._watermark(session), idle=dry)
        return PollBatch(idle=dry)

    def _with_position(self, session: Session, out: Sequence[Change | EncodedRecords], *, idle: bool) -> PollBatch:
        now = time.monotonic()
        self._unfinished = False
        if self._heartbeat.interval_s and self._heartbeat.due(now):
            at = Position(session.position.number + 1, 0, 0)
            out = [*out, *self._heartbeat.beat(now, at, partial(run_action, session.catalog))]
        self._report.events += len(out)
        self._report.tick(session, now)
        self._pace.store(session.position.place, session.moves, now)
        return PollBatch(out, session.position_json(self._ts_us), self._watermark(session), idle)

    def _watermark(self, session: Session) -> JsonObject:
        """Every transaction whose number is below `commit_lsn`, and all up to the place in `log`, has been handed on; of the tables that are `loading` not all
        rows yet."""
        ts_ms = (self._ts_us or time.time_ns() // 1000) // 1000
        position = session.position
        log = {"server": position.server, "file": position.place.file, "pos": position.place.position}
        at = {"commit_lsn": position.number + 1, "ts_ms": ts_ms, "log": log}
        if session.snapshot and (session.snapshot.progress.loads or session.scope.returning):
            loading = session.loading
            return {**at, "loading": loading} if loading else at
        return at

    # -- snapshot ---------------------------------------------------------------------------------------------------

    def _open_window(self, session: Session, snapshot: WatermarkSnapshot) -> None:
        """Takes the chunks that were read, and has more read. Called between two transactions."""
        if session.loads:
            self._jobs.look(session.loads)
        self._window_at = self._checks.go(session)
        if snapshot.finished:
            snapshot.loader.collect()
        else:
            self._passed(session)
        if snapshot.loader.keyless and not session.decoder.out:
            bytes_max, batch = self._settings.raw["snapshot.keyless.max.bytes"], partial(self._with_position, session)
            self._keyless = read_whole(snapshot, snapshot.loader.keyless, KeylessTables(session), bytes_max, batch)

    def _wait_s(self, snapshot: WatermarkSnapshot | None) -> float:
        """How long to wait for the stream; while rows are read it is looked for their boundary often."""
        is_loading = snapshot is not None and snapshot.progress.loads and snapshot.active
        return limits.NUDGE_S if is_loading else limits.POLL_S_MAX

    def _keyless_batch(self) -> PollBatch:
        assert self._keyless
        try:
            return next(self._keyless)
        except StopIteration:
            self._keyless = None
            return PollBatch()
