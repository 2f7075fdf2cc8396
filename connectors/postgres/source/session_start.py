"""Opens a session: publication, slot and position are made or checked, then the stream starts."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace

import psycopg
from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.capture.config.heartbeat_keys import transaction_topic
from cdcworker.connectors.capture.snapshot.chunk_scheduler import ChunkScheduler, ReadLimits
from cdcworker.connectors.capture.snapshot.progress import SnapshotProgress, TaskStart, is_loaded
from cdcworker.connectors.capture.snapshot.reader_pool import ReaderPool
from cdcworker.connectors.capture.snapshot.watermark_snapshot import WatermarkSnapshot
from cdcworker.connectors.capture.stream.transaction_metadata import TransactionMetadata
from cdcworker.connectors.capture.stream.transaction_spool import TransactionSpool
from cdcworker.connectors.capture.tables.last_known_keys import LastKnownKeys
from cdcworker.connectors.capture.tables.schema_guard import SchemaGuard
from cdcworker.connectors.capture.tables.table_quarantine import TableQuarantine
from cdcworker.connectors.postgres.config.settings import PostgresSettings
from cdcworker.connectors.postgres.decode.decoder import DecoderOptions, PgoutputDecoder
from cdcworker.connectors.postgres.decode.streamed_transactions import StreamedTransactions
from cdcworker.connectors.postgres.decode.table_plan import (
    TableDecodePlan,
    TableDecodePlanner,
    changed,
    message_table,
    planner_of,
    source_template,
)
from cdcworker.connectors.postgres.decode.table_shape import check_shape
from cdcworker.connectors.postgres.doctor import position_checks, replica_identity
from cdcworker.connectors.postgres.errors import CAPTURE, SLOT_LOST, TABLE_CLOSED, translate, translated
from cdcworker.connectors.postgres.pgoutput import Relation, format_lsn
from cdcworker.connectors.postgres.position import StoredPosition
from cdcworker.connectors.postgres.server import failover_slots, publication_operations
from cdcworker.connectors.postgres.server import slot as slots
from cdcworker.connectors.postgres.snapshot.row_emitter import RowEmitter
from cdcworker.connectors.postgres.snapshot.table_survey import TableReader
from cdcworker.connectors.postgres.snapshot.tx_snapshot import TransactionSnapshot
from cdcworker.connectors.postgres.source import binary_fallback
from cdcworker.connectors.postgres.source import captured_tables as tables
from cdcworker.connectors.postgres.source.session import Connections, Scope, Session, StreamState
from cdcworker.connectors.postgres.source_block import SOURCE_SCHEMA
from cdcworker.connectors.postgres.transport.admin_connection import AdminConnection
from cdcworker.connectors.postgres.transport.connection import connect
from cdcworker.connectors.postgres.transport.libpq_stream import FEEDBACK_S_MAX, ReplicationStream, SystemIdentity
from cdcworker.connectors.postgres.transport.server_functions import SNAPSHOT, log_end
from cdcworker.connectors.postgres.types.text_values import bytes_as
from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit
from cdcworker.schemas.patterns import matches_any

log = logging.getLogger(__name__)


def open_session(
    settings: PostgresSettings,
    context: TaskContext,
    application: str,
    stored: StoredPosition | None,
    held: Mapping[str, CdcError] | None = None,
) -> Session:
    """Opens a session at the stored position (None: the task never ran). `held`: tables that are to be left out from
    now on, with the errors."""
    catalog = connect(settings, application)
    session: Session | None = None
    quarantine = TableQuarantine(stored.quarantine if stored else None, settings.raw, context.jobs)
    quarantine.lift()
    try:
        quarantine.hold(_with_unreadable(catalog, stored, held or {}))
        settings = replace(settings, filters=quarantine.applied(settings.filters))
        if stored is not None:
            settings = settings.going_on(stored.timestamptz, stored.key_nan)
        session = Session(
            stored or _unset_position(settings),
            Connections(settings, application, catalog),
            Scope(settings, context.connector, quarantine),
            position_changed=quarantine.changed,
        )
        session.position.timestamptz = settings.modes.timestamptz
        session.position.key_nan = settings.modes.key_nan
        _open(session, context, stored is None)
    except psycopg.Error as exc:
        (session or catalog).close()
        raise translate(exc, {"slot": settings.slot}) from exc
    except CdcError:
        (session or catalog).close()
        raise
    return session


def _with_unreadable(
    catalog: AdminConnection, stored: StoredPosition | None, held: Mapping[str, CdcError]
) -> Mapping[str, CdcError]:
    """Returns the tables to hold with all others that wait for their snapshot and may not be read: each would end a
    session of its own otherwise."""
    if stored is None or not stored.snapshot or all(error.code != TABLE_CLOSED for error in held.values()):
        return held
    waiting = {table.table_id: table.full_name for _, table in tables.restored(catalog, stored.snapshot).tables()}
    names = sorted(waiting[oid] for oid in slots.unreadable(catalog, waiting))
    return {
        **{name: CdcError(TABLE_CLOSED, "the role may not read it", where={"table": name}) for name in names},
        **held,
    }


def _unset_position(settings: PostgresSettings) -> StoredPosition:
    return StoredPosition("", 0, settings.slot, 0, 0, 0)


def _open(session: Session, context: TaskContext, first: bool) -> None:
    settings, catalog = session.settings, session.catalog
    if not first and settings.snapshot_mode == "initial_only" and is_loaded(session.position.snapshot):
        session.finish()
        return
    slots.require_split(catalog, settings)
    slots.take_over(catalog, settings.slot, context.stopping)
    session.connections.feedback_s = min(
        FEEDBACK_S_MAX, settings.raw["status.update.interval.ms"] / 1000, _sender_timeout_s(catalog) / 3
    )
    stream = session.connections.connect_stream()
    system = stream.identify()
    # Before the publication is touched: a connector that may not run must not change anything.
    starts_over = not first and not position_checks.is_resumable(
        settings, session.position, catalog, stream, context.beat
    )
    if first and settings.filters.share.count > 1 and settings.raw["position.lost.policy"] == "resnapshot":
        # Another slot's task may have handed on rows of these tables that are gone by now.
        starts_over = settings.snapshot_mode != "no_data"
    first = first or starts_over
    # A published table without an identity refuses updates.
    session.scope.count_identities(
        replica_identity.set_configured(catalog, settings, slots.candidates(catalog, settings))
    )
    before = publication_operations.let_through(catalog, settings.publication)
    if tables.publish(catalog, session.scope) and publication_operations.store_own_alteration(
        catalog, settings.publication, session.position.snapshot, before
    ):
        session.note_position_change()
    if first:
        slots.check_readable(catalog, settings)
        session.position = _first_position(session, stream, system)
    session.position.timeline = system.timeline
    failover_slots.follow(catalog, settings, slots.find_slot(catalog, settings.slot), stream)
    planner = _planner(session)
    if starts_over:
        session.hand_on_first(position_checks.emptied(catalog, settings, planner, session.position.safe_lsn))
    template = source_template(settings.prefix, settings.dbname)
    streamed = StreamedTransactions(
        TransactionSpool(
            context.state_dir, f"{context.connector}-{context.task}", settings.raw["spool.max.bytes"], CAPTURE
        )
    )
    binary = binary_fallback.binary_until(session, context)
    options = _decoder_options(session, context, streamed, planner if binary else None)
    listener = StreamListener(session, planner)
    session.state = StreamState(PgoutputDecoder(listener.resolve, template, options, listener), streamed, binary)
    start = TaskStart(context.task_epoch, context.attempt)
    _prepare_rows(session, tables.at_start(session, start, first), template)
    _start_stream(session, stream)


def _start_stream(session: Session, stream: ReplicationStream) -> None:
    assert session.state
    settings, position, is_binary = session.settings, session.position, session.state.fallback is not None
    session.decoder.resume(position.commit_lsn, position.part, position.orders)
    streams_open = settings.raw["transaction.streaming"] and not is_binary
    if session.connections.readers:
        stream.watch(session.connections.readers.signal)
    stream.start(settings.slot, position.safe_lsn, settings.publication, ahead=streams_open, binary=is_binary)
    log.info("stream opened slot=%s lsn=%s streaming=%s", settings.slot, format_lsn(position.safe_lsn), streams_open)
    hit("postgres.streaming")


def _decoder_options(
    session: Session,
    context: TaskContext,
    streamed: StreamedTransactions,
    binary: TableDecodePlanner | None,
) -> DecoderOptions:
    """`binary`: the planner of a stream that starts in binary."""
    settings = session.settings
    metadata, binary_mode = settings.raw["provide.transaction.metadata"], settings.modes.binary
    return DecoderOptions(
        skipped=settings.skipped,
        skips_same=settings.raw["skip.messages.without.change"],
        # A message is in every slot; only the first task hands it on.
        want_message=lambda prefix: settings.slot_number == 0 and _wanted_message(settings, prefix),
        want_origin=lambda name: settings.raw["replication.origin"] != "none",
        transactions=TransactionMetadata(transaction_topic(settings.raw), SOURCE_SCHEMA) if metadata else None,
        transcode=binary_fallback.transcoder(settings, context, binary.catalog) if binary else None,
        marked_lsn=session.position.mark_lsn,
        completes=settings.completes_rows,
        messages=message_table(binary_mode),
        content=bytes if binary_mode == "bytes" else bytes_as(binary_mode),
        handlers=streamed.handlers,
    )


def _planner(session: Session) -> TableDecodePlanner:
    """Returns the planner of how tables are decoded; a table in quarantine, or one that comes back, has no columns that
    it must keep."""
    scope, catalog = session.scope, session.catalog
    guard = SchemaGuard(scope.settings.raw["schema.change.policy"], session.position.shapes, CAPTURE)
    for table in (*scope.settings.filters.held, *(scope.quarantine.lifted if scope.quarantine else ())):
        guard.forget(table)
    keys = LastKnownKeys(session.position.keys, lambda: log_end(catalog))
    scope.guard(guard, keys)
    return replace(planner_of(catalog, scope.settings), last=keys)


def _check_rows(session: Session, plan: TableDecodePlan) -> None:
    """Checks the table's shape before a chunk of its rows is handed on."""
    check_shape(session.scope.schema_guard, session.settings.filters, plan)
    if session.scope.last_keys:
        key = tuple(column.name for column in plan.table.key_columns)
        session.scope.last_keys.seen(plan.relation.oid, key, unmarked=plan.relation.identity == "f")


def _prepare_rows(session: Session, progress: SnapshotProgress, template: JsonObject) -> None:
    """Makes everything that reads rows beside the stream. Connections are opened when there is something to read."""
    settings, application = session.settings, session.connections.application
    raw = settings.raw
    limits = ReadLimits(
        raw["snapshot.max.threads"], raw["snapshot.chunk.max.bytes"], raw["snapshot.inflight.max.bytes"]
    )
    readers = session.connections.readers = ReaderPool(
        lambda: TableReader(connect(settings, application), settings), limits.threads, translated
    )
    loader = ChunkScheduler(
        progress, readers, limits, CAPTURE, lambda: _is_busy(session), bind=lambda load: tables.bind(session, load)
    )
    session.emitter = RowEmitter(
        progress, template, lambda: _current(session.catalog), lambda plan: _check_rows(session, plan)
    )
    session.snapshot = WatermarkSnapshot(loader, session.emitter, session.settings.completes_rows)
    session.loads = tables.SessionLoads(session, loader)
    if not session.snapshot.finished:
        session.observe()


def _current(connection: AdminConnection) -> TransactionSnapshot:
    row = connection.execute(f"select {SNAPSHOT}").fetchone()
    assert row
    return TransactionSnapshot.parse(row[0])


def _is_busy(session: Session) -> bool:
    """Returns whether other clients keep more backends of the server active than snapshot.load.max.backends allows."""
    most = session.settings.raw["snapshot.load.max.backends"]
    if not most:
        return False
    row = session.catalog.execute(
        "select count(*) filter (where state = 'active' and backend_type = 'client backend'),"
        # The columns of backends that the role may not see are null.
        " count(*) filter (where backend_type is null) from pg_stat_activity"
        " where application_name is distinct from current_setting('application_name')"
    ).fetchone()
    active, hidden = row or (0, 0)
    if hidden and session.scope.is_first_notice((0, "load")):
        text = "snapshot.load.max.backends counts only backends that the role may see; grant it %s hidden=%d"
        log.warning(text, "pg_read_all_stats", hidden)
    return bool(active > most)


def _sender_timeout_s(connection: AdminConnection) -> float:
    row = connection.execute("select setting::int from pg_settings where name = 'wal_sender_timeout'").fetchone()
    return row[0] / 1000 if row and row[0] else FEEDBACK_S_MAX * 3


def _first_position(session: Session, stream: ReplicationStream, identity: SystemIdentity) -> StoredPosition:
    """Returns the position of a task that never ran: its slot is created, or an existing one is taken over as it is."""
    settings, catalog = session.settings, session.catalog
    slot = slots.find_slot(catalog, settings.slot)
    if slot is None:
        lsn = (
            slots.create_temporary(stream, catalog, settings)
            if settings.is_temporary
            else slots.create(catalog, settings)
        )
        hit("postgres.slot_created")
    else:
        slots.check_kind(slot, settings.dbname)
        if slot.wal_status == "lost" or slot.confirmed_lsn is None:
            raise CdcError(SLOT_LOST, "the slot has lost WAL that it needed", where={"slot": settings.slot})
        # After a loss the slot may be another one that begins earlier: what was handed on does not come again.
        lsn = max(slot.confirmed_lsn, session.position.safe_lsn)
        log.info("slot found and taken over slot=%s lsn=%s", settings.slot, format_lsn(lsn))
    return StoredPosition(
        identity.system_id, identity.timeline, settings.slot, 0, 0, lsn,
        timestamptz=settings.modes.timestamptz, key_nan=settings.modes.key_nan,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class StreamListener:
    """Answers the questions of a session's decoder, and takes its notices."""

    session: Session
    planner: TableDecodePlanner

    def resolve(self, relation: Relation) -> TableDecodePlan | None:
        """The plan of a table that the stream describes, None when it is not captured. Logs schema changes and types
        without a mapping."""
        session, scope = self.session, self.session.scope
        if not scope.settings.filters.table(relation.schema, relation.table):
            return None
        plan = self.planner.plan(relation)
        check_shape(scope.schema_guard, scope.settings.filters, plan)
        old = session.decoder.plan(relation.oid)
        name = f"{relation.schema}.{relation.table}"
        if old and old.table != plan.table:
            differences = changed(old.table, plan.table).items()
            log.info("table changed table=%s %s", name, " ".join(f"{k}={v}" for k, v in differences))
        for column in plan.guessed:
            if scope.is_first_notice((relation.oid, column)):
                log.info("type has no mapping and is delivered as text table=%s column=%s", name, column)
        if name == scope.settings.filters.signals:
            session.decoder.listen(relation.oid, session.signals.take)
        if session.snapshot:
            tables.discover(session, relation)
        return plan

    def moved(self, plan: TableDecodePlan, data: bytes) -> None:
        """Has a row read again whose key changed while a value of it was not sent."""
        tables.moved(self.session, plan, data)

    @property
    def expiring(self) -> Sequence[Sized]:
        """The tables of which a last known key or a composite type is kept until the stream has passed."""
        keys, composites = self.session.scope.last_keys, self.session.scope.composites
        return (composites.until,) if keys is None else (keys.until, composites.until)

    def expired(self, lsn: int) -> Iterable[int]:
        """Tables whose last known keys or composite types the stream has passed."""
        return self.session.scope.expired(lsn)


def _wanted_message(settings: PostgresSettings, prefix: str) -> bool:
    include = settings.raw["message.prefix.include.list"]
    exclude = settings.raw["message.prefix.exclude.list"]
    if include:
        return matches_any(include, prefix, ignore_case=True)
    return not (exclude and matches_any(exclude, prefix, ignore_case=True))
