"""The source task: one slot, one stream, a snapshot beside it; batches that end at the source's commits."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import psycopg
from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.capture.snapshot.jobs import SnapshotJobs
from cdcworker.connectors.capture.snapshot.watermark_snapshot import WatermarkSnapshot
from cdcworker.connectors.capture.snapshot.whole_table import read_whole
from cdcworker.connectors.capture.stream import limits
from cdcworker.connectors.capture.stream.batches import Batches
from cdcworker.connectors.capture.stream.position_pace import PositionPace
from cdcworker.connectors.capture.stream.signal_table import SignalStage
from cdcworker.connectors.capture.stream.transaction_spool import NotStreamable
from cdcworker.connectors.capture.stream.windows import Windows
from cdcworker.connectors.capture.tables.table_quarantine import may_hold
from cdcworker.connectors.postgres.config.settings import PostgresSettings
from cdcworker.connectors.postgres.decode import streamed_transactions
from cdcworker.connectors.postgres.decode.decoder import PgoutputDecoder
from cdcworker.connectors.postgres.decode.native_path import NativePath, native
from cdcworker.connectors.postgres.errors import CAPTURE, translate
from cdcworker.connectors.postgres.pgoutput import OWN_PREFIX, format_lsn
from cdcworker.connectors.postgres.position import StoredPosition
from cdcworker.connectors.postgres.server import slot as slots
from cdcworker.connectors.postgres.source import binary_fallback
from cdcworker.connectors.postgres.source import limits as own_limits
from cdcworker.connectors.postgres.source.heartbeat_action import make_heartbeat, run_action
from cdcworker.connectors.postgres.source.keyless_tables import KeylessTables
from cdcworker.connectors.postgres.source.lag_monitor import LagMonitor
from cdcworker.connectors.postgres.source.periodic_checks import PeriodicChecks
from cdcworker.connectors.postgres.source.session import Session, StreamState
from cdcworker.connectors.postgres.source.session_start import open_session
from cdcworker.connectors.postgres.source.streaming_fallback import fall_back, recover
from cdcworker.connectors.postgres.transport.connection import application_name, connect
from cdcworker.connectors.postgres.transport.libpq_stream import ReplicationStream
from cdcworker.connectors.postgres.transport.server_functions import PUSH
from cdcworker.schemas import failpoints
from cdcworker.schemas.change import Change, EncodedRecords, JsonObject, PollBatch
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.record_layout import RecordLayouts

log = logging.getLogger(__name__)

COMMIT, MESSAGE = ord("C"), ord("M")
NOT_OPEN = "the task is not open"


class PostgresTask:
    """Called from one thread; `open` may be called again only on a new object."""

    def __init__(self, settings: PostgresSettings, context: TaskContext) -> None:
        self._settings = settings
        self._context = context
        self._session: Session | None = None
        self._native_path: NativePath | None = None
        self._application = application_name(context.group, context.connector, context.task)
        self._rows_only = settings.snapshot_mode == "initial_only"
        self._first = True
        """The next poll returns a position at once, so that it is stored."""
        self._dry = False
        """Whether nothing was left to read when the stream was read last."""
        self._boundary = 0
        """How many of the decoder's changes stand before the last boundary, and how many bytes they came from."""
        self._boundary_bytes = 0
        self._batch_bytes_max = limits.BATCH_BYTES_MAX
        self._ts_us = 0
        """The commit time of the last transaction."""
        self._pace = PositionPace(settings.heartbeat_s)
        self._behind_since = 0.0
        self._is_gap_stored = False
        self._checks = PeriodicChecks(settings)
        self._jobs = SnapshotJobs(context.jobs)
        self._heartbeat = make_heartbeat(settings)
        self._monitor = LagMonitor(context, self._jobs, self._heartbeat.report)
        share = settings.filters.share.told()
        self._batches = Batches(self._pace, self._heartbeat, self._monitor, _run_action, share)
        self._windows = Windows(context, self._jobs, self._checks.go, self._at_boundary, self._read_whole)
        self._unfinished = False
        """Changes were handed out of a transaction that had not ended: its end is worth a position."""
        self._held_tables: dict[str, CdcError] = {}

    # -- SourceTask -------------------------------------------------------------------------------------------------

    def holds(self, error: CdcError) -> bool:
        """Returns whether the table that this error names may be held back while the others go on."""
        return may_hold(self._settings.raw, error, CAPTURE)

    @property
    def completes_rows(self) -> bool:
        """Tells whether rows are read again whose values were not all sent."""
        return self._settings.completes_rows

    def hold(self, tables: Mapping[str, CdcError]) -> None:
        """Called before `open`: these tables are left out from now on."""
        self._held_tables = dict(tables)

    def open(self, position: JsonObject | None) -> None:
        stored = StoredPosition.from_json(position) if position is not None else None
        self._session = open_session(self._settings, self._context, self._application, stored, self._held_tables)
        self._first = position is None or self._session.position_changed
        self._pace.begin(self._session.position.safe_lsn, time.monotonic())

    def use_layouts(self, layouts: RecordLayouts) -> None:
        """Lets rows become records here, by the native core, where it was built and is wanted."""
        session, module = self._opened(), native() if self._settings.raw["decoder.native"] else None
        if session.state is not None and module is not None:
            self._batch_bytes_max = own_limits.NATIVE_BYTES_MAX
            self._native_path = NativePath(
                *(
                    session.decoder,
                    layouts,
                    module,
                    limits.BATCH_BYTES_MAX,
                    own_limits.NATIVE_BYTES_MAX,
                    self._at_commit,
                )
            )
            session.write_natively(layouts, module)

    def poll(self) -> PollBatch:
        session = self._session
        if session is None:
            raise RuntimeError(NOT_OPEN)
        try:
            if self._first:
                self._first = False
                return self._with_position(session, session.emptied, idle=True)
            stream, state = session.connections.stream, session.state
            if session.complete or stream is None or state is None:
                time.sleep(limits.POLL_S_MAX)
                return PollBatch(idle=True)
            decoder, snapshot = state.decoder, session.snapshot
            batch = self._windows.turn(session, is_between=not decoder.in_transaction)
            if batch is not None:
                return batch
            if state.fallback and not decoder.in_transaction:
                recover(session, self._context)
                stream = session.connections.require_stream()
            # What was read to its end is waited for before it is read again, also in the middle of a transaction.
            if self._dry and not stream.wait(
                self._wait_s(session, stream) if snapshot and snapshot.progress.loads else limits.POLL_S_MAX
            ):
                return self._batch(session, decoder, True)
            self._dry = self._read(session, stream, state)
            return self._batch(session, decoder, self._dry)
        except psycopg.Error as exc:
            raise translate(exc) from exc

    def ack(self, position: JsonObject) -> None:
        session = self._session
        if session is None:
            raise RuntimeError(NOT_OPEN)
        is_gap_stored = bool((position.get("snapshot") or {}).get("gap"))
        if is_gap_stored is not self._is_gap_stored:
            self._is_gap_stored = is_gap_stored
            self._checks.stored(position)
        stream = session.connections.stream
        if stream is None:
            return
        try:
            if failpoints.active:
                failpoints.hit("postgres.before_confirm")
            stream.confirm(int(position["safe_lsn"]))  # INV-1
            if failpoints.active:
                failpoints.hit("postgres.after_confirm")
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
            raise RuntimeError(NOT_OPEN)
        return self._session

    def _read(self, session: Session, stream: ReplicationStream, state: StreamState) -> bool:
        """Reads the spooled messages of a streamed transaction that has committed, then what has arrived. Returns whether nothing is
        left to read. Messages go to `_take`, rows in whole frames to the native path."""
        streamed, decoder, path = state.streamed, state.decoder, self._native_path
        dry = False
        try:
            while True:
                streamed.turned = False
                if streamed.replay is not None:
                    if not all(map(self._take, streamed.replay)):
                        break
                    streamed.replay = None
                elif (
                    stream.receive(streamed.take)
                    if streamed.inside
                    else stream.receive(self._take, path.feed_frames if path is not None else None)
                ):
                    dry = True
                    break
                elif not streamed.turned:
                    break
            if path is not None and decoder.in_transaction:
                path.flush()
            if dry and not decoder.in_transaction and stream.keepalive_lsn > session.position.safe_lsn:
                # Between two transactions: what the keep-alive says is true of us as well.
                self._ts_us = time.time_ns() // 1000
                self._passed(session, decoder, stream.keepalive_lsn)
        except NotStreamable as exc:
            fall_back(session, self._context, exc)
            return False
        except CdcError as exc:
            raise binary_fallback.turned(session, self._context, exc) from exc
        return dry

    def _take(self, data: bytes) -> bool:
        """Decodes one message. Returns whether more may be read into this batch."""
        session = self._session
        assert session
        assert session.state
        decoder = session.state.decoder
        kind = (self._native_path or decoder).feed(data)
        if kind == COMMIT:
            return self._at_commit(decoder)
        if kind == MESSAGE and decoder.message_lsn > session.position.commit_lsn and not decoder.in_transaction:
            # Every transaction that committed before the message has been delivered.
            session.position.commit_lsn = decoder.message_lsn
            self._passed(session, decoder, decoder.message_lsn + 1)
        if kind in streamed_transactions.TURNS:
            session.state.streamed.turned = True
            return False
        if kind == streamed_transactions.RELATION:
            session.state.streamed.described(data)
        return len(decoder.out) < limits.BATCH_CHANGES_MAX and decoder.bytes < limits.BATCH_BYTES_MAX

    def _at_commit(self, decoder: PgoutputDecoder) -> bool:
        """Everything up to the last commit is in the decoder's output. Returns whether more may be read."""
        session, commit = self._session, decoder.commit
        assert session
        assert commit
        position, stream, snapshot = session.position, session.connections.stream, session.snapshot
        assert stream
        position.commit_lsn = max(position.commit_lsn, commit.commit_lsn)
        if position.part and position.part[0] <= commit.commit_lsn:
            position.part = position.orders = None
        stream.received = max(stream.received, commit.end_lsn)
        self._ts_us = commit.commit_us
        if snapshot is not None and snapshot.progress.loads:
            snapshot.committed(decoder.last_xid)
        self._passed(session, decoder, commit.end_lsn)
        if snapshot is not None and snapshot.loader.keyless:
            return False
        return len(decoder.out) < limits.BATCH_CHANGES_MAX and decoder.bytes < self._batch_bytes_max

    def _passed(self, session: Session, decoder: PgoutputDecoder, safe_lsn: int) -> None:
        """A boundary: everything that committed before `safe_lsn` has been delivered."""
        position = session.position
        position.safe_lsn = max(position.safe_lsn, safe_lsn)
        snapshot = session.snapshot
        if session.signals.pending:
            assert session.loads
            at = position.commit_lsn
            session.signals.carry_out(SignalStage(session.loads, at, format_lsn(at)))
        if snapshot and (snapshot.progress.loads or decoder.observer is not None):
            decoder.out.extend(snapshot.step(position.safe_lsn))
            if snapshot.finished:
                decoder.observe(None)
        self._boundary = len(decoder.out)
        self._boundary_bytes = decoder.bytes

    # -- batches ----------------------------------------------------------------------------------------------------

    def _batch(self, session: Session, decoder: PgoutputDecoder, dry: bool) -> PollBatch:
        """Returns the decoder's changes up to the last boundary, or a part of a transaction that alone fills a batch."""
        out = decoder.out
        if decoder.in_transaction:
            if not self._boundary:
                if len(out) < limits.BATCH_CHANGES_MAX and decoder.bytes < limits.BATCH_BYTES_MAX:
                    return PollBatch()
                decoder.out, decoder.bytes = [], 0
                self._unfinished = True
                if failpoints.active:
                    failpoints.hit("postgres.part_read")
                return PollBatch(out, part=self._part(decoder))
            out = decoder.take_until(self._boundary, self._boundary_bytes)
        else:
            decoder.out, decoder.bytes = [], 0
        self._boundary = self._boundary_bytes = 0
        if self._rows_only and session.snapshot and session.snapshot.complete:
            session.finish()
        if out or self._unfinished:
            if failpoints.active:
                failpoints.hit("postgres.read")
            return self._with_position(session, out, idle=dry)
        return self._without_changes(session, dry)

    def _part(self, decoder: PgoutputDecoder) -> JsonObject:
        """Returns where the transaction could be resumed. Chunks of rows that are read from now on must see it."""
        session, part = self._opened(), decoder.part
        assert part
        if session.snapshot:
            session.snapshot.committed(decoder.last_xid)
        stored = session.position.part
        session.position.part = max(part, stored) if stored and stored[0] == part[0] else part
        counts, session.position.orders = (
            session.position.orders,
            dict(decoder.orders.counts) if decoder.orders else None,
        )
        position = session.position_json(self._ts_us)
        session.position.part, session.position.orders = stored, counts
        return position

    def _without_changes(self, session: Session, dry: bool) -> PollBatch:
        if dry:
            self._ts_us = max(self._ts_us, self._monitor.caught_up_us(session.position.safe_lsn))
        return self._batches.without_changes(session, self._ts_us, idle=dry)

    def _with_position(self, session: Session, out: Sequence[Change | EncodedRecords], *, idle: bool) -> PollBatch:
        self._unfinished = False
        return self._batches.with_position(session, out, self._ts_us, idle=idle)

    # -- snapshot ---------------------------------------------------------------------------------------------------

    def _at_boundary(self, session: Session) -> None:
        """Called between two transactions."""
        self._passed(session, session.decoder, session.position.safe_lsn)

    def _read_whole(self, session: Session, snapshot: WatermarkSnapshot) -> Iterator[PollBatch]:
        assert snapshot.loader.keyless
        bytes_max, batch = self._settings.raw["snapshot.keyless.max.bytes"], partial(self._with_position, session)
        return read_whole(snapshot, snapshot.loader.keyless, KeylessTables(session), bytes_max, batch)

    def _wait_s(self, session: Session, stream: ReplicationStream) -> float:
        """How long to wait for the stream; while rows wait for their boundary the server is asked for it."""
        if session.snapshot is None or not session.snapshot.active:
            return limits.POLL_S_MAX
        if not session.snapshot.is_behind(session.position.safe_lsn):
            self._behind_since = 0.0
            return limits.NUDGE_S
        now = time.monotonic()
        self._behind_since = self._behind_since or now
        if now - self._behind_since > own_limits.PUSH_S:
            self._behind_since = now
            session.catalog.execute(PUSH, (OWN_PREFIX,))
        stream.status(reply=True)
        return limits.NUDGE_S

    # -- the end ----------------------------------------------------------------------------------------------------

    def _let_go(self, session: Session) -> None:
        """Ends a task that was to read rows only, and drops its slot, which would hold the log for ever."""
        session.close()
        session.connections.drop_stream()
        self._drop_slot()

    def _drop_slot(self) -> None:
        try:
            with connect(self._settings, self._application) as connection:
                slots.take_over(connection, self._settings.slot, lambda: False)
                slots.drop(connection, self._settings.slot)
        except (CdcError, psycopg.Error) as exc:
            log.warning("slot not dropped slot=%s error=%s", self._settings.slot, translate(exc))


def _run_action(session: Session, statement: str) -> CdcError | None:
    return run_action(session.catalog, statement)
