"""The source task: one stream of the binary log, a snapshot beside it; batches that end at the source's commits."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.capture.native.compiled import NATIVE
from cdcworker.connectors.capture.snapshot.jobs import SnapshotJobs
from cdcworker.connectors.capture.snapshot.watermark_snapshot import WatermarkSnapshot
from cdcworker.connectors.capture.snapshot.whole_table import read_whole
from cdcworker.connectors.capture.stream import limits
from cdcworker.connectors.capture.stream.batches import Batches
from cdcworker.connectors.capture.stream.heartbeat import Heartbeat
from cdcworker.connectors.capture.stream.position_pace import PositionPace
from cdcworker.connectors.capture.stream.signal_table import SignalStage
from cdcworker.connectors.capture.stream.windows import Windows
from cdcworker.connectors.capture.tables.table_quarantine import may_hold
from cdcworker.connectors.mysql.binlog.event_reader import Event
from cdcworker.connectors.mysql.binlog.format_description import FormatDescription
from cdcworker.connectors.mysql.binlog.plain_events import HeartbeatEvent, Rotate
from cdcworker.connectors.mysql.config.settings import MySqlSettings
from cdcworker.connectors.mysql.decode.native_log import NativeLog, make_native_log
from cdcworker.connectors.mysql.decode.native_rows import NativeRows, native
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
from cdcworker.connectors.mysql.transport.packets import PacketBuffer
from cdcworker.schemas import failpoints
from cdcworker.schemas.change import Change, EncodedRecords, JsonObject, PollBatch
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.record_layout import RecordLayouts

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
        self._log: NativeLog | None = None
        self._boundary = 0
        """How many of the decoder's changes stand before the last boundary."""
        self._bytes = 0
        """Of the events that the batch was made of."""
        self._ts_us = 0
        """The commit time of the last transaction."""
        self._made = 0
        """When the file that is being read was begun."""
        self._heard_at = time.monotonic()
        self._pace = PositionPace(settings.heartbeat_s)
        self._checks = PeriodicChecks(settings.raw["table.discovery.interval.ms"] / 1000)
        self._jobs = SnapshotJobs(context.jobs)
        self._heartbeat: Heartbeat = make_heartbeat(settings, source_schema(settings.product or "mysql"))
        report = TaskReport(context, self._jobs, self._heartbeat.report)
        self._batches = Batches(self._pace, self._heartbeat, report, _run_action, place=_log_place)
        self._windows = Windows(context, self._jobs, self._checks.go, self._passed, self._read_whole)
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

    def use_layouts(self, layouts: RecordLayouts) -> None:
        """Lets rows become records here, by the native core, where it was built and is wanted."""
        session, module = self._opened(), native() if self._settings.raw[NATIVE] else None
        if module is not None:
            schema = source_schema(session.position.product)
            rows = NativeRows(layouts, module, schema)
            session.write_natively(rows)
            if session.emitter is not None:
                session.emitter.use_layouts(layouts, module)
            self._log = make_native_log(session.state, rows, module, schema, partial(self._at_commit, session))

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
        batch = self._windows.turn(session, is_between=session.decoder.transaction is None)
        if batch is not None:
            return batch
        # What was read to its end is waited for before it is read again, also in the middle of a transaction.
        if self._dry and not stream.wait(self._wait_s(session.snapshot)):
            self._require_news()
            return self._batch(session, True)
        self._dry = self._read(session, stream)
        return self._batch(session, self._dry)

    def _read(self, session: Session, stream: DumpStream) -> bool:
        """Reads what has arrived, up to a full batch. Returns whether nothing is left to read."""
        if not self._feed(session):
            return False
        run = None if self._log is None else partial(self._run, session, self._log)
        is_dry = stream.receive(partial(self._take, session), run)
        if stream.ended:
            raise CdcError(CONNECTION_LOST, "the server has ended the stream of its log")
        return is_dry

    def _run(self, session: Session, log: NativeLog, packets: PacketBuffer) -> bool:
        """Has the native core read what it knows of what has arrived. Returns whether more may be read into this batch."""
        snapshot = session.snapshot
        if session.signals.pending or (snapshot is not None and (snapshot.progress.loads or snapshot.loader.keyless)):
            return True
        size, goes_on = log.feed(packets, limits.BATCH_BYTES_MAX - self._bytes)
        if size:
            self._heard_at = time.monotonic()
            self._bytes += size
        return goes_on and not self._is_full(session)

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
        if isinstance(body, HeartbeatEvent):
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
                decoder.observe(None)
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
        return self._batches.without_changes(session, self._ts_us, idle=dry)

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

    def _with_position(self, session: Session, out: Sequence[Change | EncodedRecords], *, idle: bool) -> PollBatch:
        self._unfinished = False
        return self._batches.with_position(session, out, self._ts_us, idle=idle)

    # -- snapshot ---------------------------------------------------------------------------------------------------

    def _read_whole(self, session: Session, snapshot: WatermarkSnapshot) -> Iterator[PollBatch]:
        assert snapshot.loader.keyless
        bytes_max, batch = self._settings.raw["snapshot.keyless.max.bytes"], partial(self._with_position, session)
        return read_whole(snapshot, snapshot.loader.keyless, KeylessTables(session), bytes_max, batch)

    def _wait_s(self, snapshot: WatermarkSnapshot | None) -> float:
        """How long to wait for the stream; while rows are read it is looked for their boundary often."""
        is_loading = snapshot is not None and snapshot.progress.loads and snapshot.active
        return limits.NUDGE_S if is_loading else limits.POLL_S_MAX


def _run_action(session: Session, statement: str) -> CdcError | None:
    return run_action(session.catalog, statement)


def _log_place(session: Session) -> JsonObject:
    """What watermarks tell besides: everything in the log of this server up to this place has been handed on."""
    position = session.position
    return {"log": {"server": position.server, "file": position.place.file, "pos": position.place.position}}
