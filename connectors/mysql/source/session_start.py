"""Opens a session: server and position are checked or the position is made, then the stream starts."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.capture.config.heartbeat_keys import transaction_topic
from cdcworker.connectors.capture.snapshot.chunk_scheduler import ChunkScheduler, ReadLimits
from cdcworker.connectors.capture.snapshot.progress import SnapshotProgress, TaskStart, is_loaded
from cdcworker.connectors.capture.snapshot.reader_pool import ReaderPool
from cdcworker.connectors.capture.snapshot.watermark_snapshot import WatermarkSnapshot
from cdcworker.connectors.capture.source_template import template_of
from cdcworker.connectors.capture.stream.transaction_metadata import TransactionMetadata
from cdcworker.connectors.capture.tables.schema_guard import SchemaGuard
from cdcworker.connectors.capture.tables.table_quarantine import TableQuarantine
from cdcworker.connectors.mysql import errors as e
from cdcworker.connectors.mysql.binlog.event_reader import EventReader
from cdcworker.connectors.mysql.catalog.completion import TableCatalog
from cdcworker.connectors.mysql.catalog.described_table import describe
from cdcworker.connectors.mysql.catalog.tables import CatalogTable, read_table
from cdcworker.connectors.mysql.config.settings import MySqlSettings
from cdcworker.connectors.mysql.decode.captured_plans import CapturedPlans
from cdcworker.connectors.mysql.decode.commit_numbers import CommitNumbers
from cdcworker.connectors.mysql.decode.decoder import BinlogDecoder
from cdcworker.connectors.mysql.decode.row_writer import DecoderOptions
from cdcworker.connectors.mysql.decode.schema_changes import Describe, SchemaChanges, schema_change_table
from cdcworker.connectors.mysql.decode.table_plan import TablePlanner
from cdcworker.connectors.mysql.decode.table_shape import check_shape
from cdcworker.connectors.mysql.gtid.executed import ExecutedGtids, Gtids
from cdcworker.connectors.mysql.gtid.mariadb import MariaDbPosition
from cdcworker.connectors.mysql.server.connection import opened, translate
from cdcworker.connectors.mysql.server.facts import ServerFacts, read_facts
from cdcworker.connectors.mysql.server.log_events import made_at
from cdcworker.connectors.mysql.server.log_files import log_end
from cdcworker.connectors.mysql.server.steady_connection import SteadyConnection, translated
from cdcworker.connectors.mysql.snapshot.read_view import GtidPlace, GtidVisibility
from cdcworker.connectors.mysql.snapshot.row_emitter import RowEmitter
from cdcworker.connectors.mysql.source import captured_tables as tables
from cdcworker.connectors.mysql.source import position_checks
from cdcworker.connectors.mysql.source.position import NO_PLACE, FilePlace, StoredPosition
from cdcworker.connectors.mysql.source.session import Connections, Scope, Session, StreamState, opened_reader
from cdcworker.connectors.mysql.source.stream_plans import StreamPlans
from cdcworker.connectors.mysql.source_block import source_schema
from cdcworker.connectors.mysql.transport.commands import FileStart, GtidStart, MariaDbStart, Reader, Start
from cdcworker.connectors.mysql.transport.dump_stream import DumpStream
from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit

log = logging.getLogger(__name__)

HEARTBEAT_S: Final = 1.0
"""How often the server says that there is nothing new: an idle task is known to be at the log's end as often."""


def open_session(
    settings: MySqlSettings,
    context: TaskContext,
    stored: StoredPosition | None,
    held: Mapping[str, CdcError],
) -> Session:
    """Opens a session at the stored position (None: the task never ran). `held`: tables that are to be left out from now on, with
    the errors."""
    quarantine = TableQuarantine(stored.quarantine if stored else None, settings.raw, context.jobs)
    quarantine.lift()
    quarantine.hold(held)
    settings = replace(settings, filters=quarantine.applied(settings.filters))
    catalog = SteadyConnection(settings)
    connections = Connections(settings, catalog)
    try:
        with translated():
            return _open(settings, context, stored, connections, quarantine)
    except BaseException:
        connections.close()
        raise


def _open(
    settings: MySqlSettings,
    context: TaskContext,
    stored: StoredPosition | None,
    connections: Connections,
    quarantine: TableQuarantine,
) -> Session:
    catalog = connections.catalog
    facts = read_facts(catalog.get())
    _require_product(settings, facts)
    _require_rows(facts)
    starts_over = stored is not None and not position_checks.is_resumable(settings, stored, catalog, facts)
    is_first = stored is None or starts_over
    numbers = CommitNumbers(stored.number if stored else 0)
    position = stored
    if position is None or starts_over:
        numbers = CommitNumbers(stored.last_number if stored else 0)
        position = _first_position(settings, catalog, facts, numbers)
    elif position.part is not None:
        numbers = CommitNumbers(position.number, position.part.number)
    # The server is another one after a failover: the place in its files is known once the stream has begun.
    is_moved = position.server != facts.identity
    if is_moved:
        position.server, position.place = facts.identity, NO_PLACE
    guard = SchemaGuard(settings.raw["schema.change.policy"], position.shapes, e.CAPTURE)
    for name in (*settings.filters.held, *quarantine.lifted):
        guard.forget(name)
    scope = Scope(settings, quarantine, guard)
    state, template = _stream_state(settings, facts, catalog, (position, numbers, guard))
    session = Session(
        position, connections, scope, facts, state, position_changed=quarantine.changed or is_moved or starts_over
    )
    if settings.snapshot_mode == "initial_only" and not is_first and is_loaded(position.snapshot):
        session.finish()
        return session
    progress = tables.at_start(session, TaskStart(context.task_epoch, context.attempt), is_first)
    _prepare_rows(session, progress, template)
    if starts_over:
        session.hand_on_first(tables.emptied(session, _loaded_anew(progress)))
    _start_stream(session)
    return session


def _loaded_anew(progress: SnapshotProgress) -> list[tuple[int, str, str]]:
    return [(table.table_id, table.schema, table.name) for _, table in progress.tables()]


def _require_product(settings: MySqlSettings, facts: ServerFacts) -> None:
    """Raises CdcError for a server of the other product: schemas and headers of the records would name two."""
    if settings.product and settings.product != facts.connector:
        raise CdcError(e.OTHER_PRODUCT, f"the server is {facts.product}", where={"key": "connector.class"})


def _require_rows(facts: ServerFacts) -> None:
    """Raises CdcError for a server whose log cannot be read from here on."""
    if facts["log_bin"].upper() not in ("ON", "1"):
        raise CdcError(e.LOG_OFF, "log_bin is off")
    if facts["binlog_format"].upper() != "ROW":
        raise CdcError(e.LOG_FORMAT, f"binlog_format = {facts['binlog_format']}")


def _first_position(
    settings: MySqlSettings, catalog: SteadyConnection, facts: ServerFacts, numbers: CommitNumbers
) -> StoredPosition:
    """Returns the position of a task that never ran, or whose position was lost: the end of the log."""
    end = log_end(catalog.get(), facts)
    made = made_at(settings, end.file)
    return StoredPosition(
        product=facts.connector,
        server=facts.identity,
        gtids=str(end.gtids),
        has_gtids=facts.has_gtids,
        place=FilePlace(end.file, end.position, made),
        number=numbers.begin_anew(time.time_ns() // 1000),
    )


def _stream_state(
    settings: MySqlSettings,
    facts: ServerFacts,
    catalog: SteadyConnection,
    where: tuple[StoredPosition, CommitNumbers, SchemaGuard],
) -> tuple[StreamState, JsonObject]:
    """Returns how the stream is decoded, and the `source` block as each change begins with it. `where`: the position, the numbers
    that follow it, and what remembers the shapes of tables."""
    position, numbers, guard = where
    schema = source_schema(position.product)

    def read(database: str, name: str) -> CatalogTable | None:
        with translated():
            return read_table(catalog.get(), database, name, is_mariadb=facts.is_mariadb)

    def described(database: str, name: str) -> JsonObject | None:
        with translated():
            return describe(catalog.get(), database, name, is_mariadb=facts.is_mariadb)

    known = TableCatalog(read, is_mariadb=facts.is_mariadb)
    whole_rows = facts["binlog_row_image"].upper() == "FULL"
    planner = TablePlanner(settings, schema, known.table, whole_rows)
    plans = CapturedPlans(planner, known)
    template = template_of(schema, connector=position.product, name=settings.prefix)
    options = _decoder_options(settings, position.product, schema, described)
    decoder = BinlogDecoder(StreamPlans(plans, guard), template, numbers, options)
    if options.transactions:
        options.transactions.resume(position.orders)
    if position.part is not None:
        decoder.resume(position.part.rows, position.part.gtid)
    executed = ExecutedGtids(position.executed())
    return StreamState(EventReader(complete=plans.complete), decoder, numbers, executed, planner), template


def _decoder_options(
    settings: MySqlSettings, connector: str, schema: Mapping[str, Any], described: Describe
) -> DecoderOptions:
    raw, filters = settings.raw, settings.filters
    told = schema_change_table(settings.prefix, connector, schema) if raw["include.schema.changes"] else None
    metadata = raw["provide.transaction.metadata"]
    return DecoderOptions(
        skipped=settings.skipped,
        skips_same=raw["skip.messages.without.change"],
        shows_query=raw["include.query"],
        completes=settings.completes_rows,
        transactions=TransactionMetadata(transaction_topic(raw), schema) if metadata else None,
        schema_changes=SchemaChanges(told, filters.table, filters.holds, described) if told else None,
    )


def _prepare_rows(session: Session, progress: SnapshotProgress, template: JsonObject) -> None:
    """Makes everything that reads rows beside the stream. Connections are opened when there is something to read."""
    settings, scope, planner, raw = session.settings, session.scope, session.state.planner, session.settings.raw
    limits = ReadLimits(
        raw["snapshot.max.threads"], raw["snapshot.chunk.max.bytes"], raw["snapshot.inflight.max.bytes"]
    )
    readers = session.connections.readers = ReaderPool(
        lambda: opened_reader(settings, planner, scope.name_of), limits.threads, _translated
    )
    loader = ChunkScheduler(progress, readers, limits, e.CAPTURE, partial(_is_busy, session))
    session.emitter = RowEmitter(
        progress,
        template,
        session.state.numbers,
        partial(_current, session),
        is_mariadb=session.facts.is_mariadb,
        check=partial(check_shape, scope.guard),
    )
    session.snapshot = WatermarkSnapshot(loader, session.emitter, settings.completes_rows)
    session.loads = tables.SessionLoads(session, loader)
    if settings.filters.signals:
        session.decoder.listeners[settings.filters.signals] = session.signals.take
    if not session.snapshot.finished:
        session.observe()


def _translated(exc: Exception) -> Exception:
    import pymysql

    return translate(exc) if isinstance(exc, pymysql.Error) else exc


def _current(session: Session) -> GtidVisibility:
    """Returns what a read would see now."""
    end = log_end(session.catalog.get(), session.facts)
    return GtidVisibility(GtidPlace(end.gtids), exact=session.facts.is_mariadb)


def _is_busy(session: Session) -> bool:
    """Returns whether more threads of the server run than snapshot.load.max.running allows."""
    most = session.settings.raw["snapshot.load.max.running"]
    if not most:
        return False
    rows = session.catalog.ask("show global status like 'Threads_running'")
    return bool(rows) and int(rows[0][1]) > most


def _start_stream(session: Session) -> None:
    settings, position = session.settings, session.position
    start = _start_of(position, session.state.executed.gtids)
    reader = Reader(settings.server_id, heartbeat_s=HEARTBEAT_S, statements=settings.raw["include.query"])
    stream = session.connections.stream = DumpStream.start(opened(settings), reader, start)
    session.state.events.begin(stream.checksum)
    if session.connections.readers:
        stream.watch(session.connections.readers.signal)
    log.info("stream opened gtids=%s file=%s pos=%d", position.gtids, position.place.file, position.place.position)
    hit("mysql.streaming")


def _start_of(position: StoredPosition, gtids: Gtids) -> Start:
    if not position.has_gtids:
        return FileStart(position.place.file, position.place.position)
    return MariaDbStart(gtids) if isinstance(gtids, MariaDbPosition) else GtidStart(gtids)
