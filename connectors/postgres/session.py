"""Opening a task: publication, slot and position are made or checked, then the stream starts."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType

import psycopg
from cdcworker.connectors.api import TaskContext
from cdcworker.connectors.postgres import ahead as aheads
from cdcworker.connectors.postgres import failover, identity, operations, safety, tables, turning
from cdcworker.connectors.postgres import slot as slots
from cdcworker.connectors.postgres.beside_config import transaction_topic
from cdcworker.connectors.postgres.changes import Changes
from cdcworker.connectors.postgres.chunks import Reader
from cdcworker.connectors.postgres.composites import Composites
from cdcworker.connectors.postgres.config import Settings
from cdcworker.connectors.postgres.connection import AdminConnection, connect
from cdcworker.connectors.postgres.errors import SLOT_LOST, TABLE_CLOSED, TABLE_RETURNS, translate
from cdcworker.connectors.postgres.fallback import Fallback
from cdcworker.connectors.postgres.lastkeys import LastKeys
from cdcworker.connectors.postgres.loading import Limits, Loader
from cdcworker.connectors.postgres.orders import Orders
from cdcworker.connectors.postgres.position import StoredPosition
from cdcworker.connectors.postgres.progress import Progress, is_loaded
from cdcworker.connectors.postgres.quarantine import Quarantine
from cdcworker.connectors.postgres.readers import Readers
from cdcworker.connectors.postgres.relations import Plan, Planner, changed, planner_of, source_template
from cdcworker.connectors.postgres.shapes import ShapeGuard
from cdcworker.connectors.postgres.signals import Signals
from cdcworker.connectors.postgres.snapshot import LOADING_MAX, Snapshot
from cdcworker.connectors.postgres.socket_stream import connect_stream
from cdcworker.connectors.postgres.spool import Spool
from cdcworker.connectors.postgres.stamping import RowWriter
from cdcworker.connectors.postgres.standby import SNAPSHOT, log_end
from cdcworker.connectors.postgres.stream import FEEDBACK_S_MAX, ReplicationStream, SystemIdentity
from cdcworker.connectors.postgres.visibility import TxSnapshot
from cdcworker.connectors.postgres.wire import Relation, format_lsn
from cdcworker.schemas.change import Change, JsonObject, Ready
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit
from cdcworker.schemas.shape import Shaper

log = logging.getLogger(__name__)


@dataclass
class Session:
    """All that an open task holds. `complete`: rows only were wanted, and all have been handed on."""

    settings: Settings
    position: StoredPosition
    catalog: AdminConnection
    stream: ReplicationStream | None = None
    changes: Changes | None = None
    snapshot: Snapshot | None = None
    readers: Readers | None = None
    reader: Reader | None = None
    """For tables without a key, which are read while the stream stands still."""
    ahead: aheads.Ahead | None = None
    fallback: Fallback | None = None
    feedback_s: float = FEEDBACK_S_MAX
    quarantine: Quarantine | None = None
    shapes: ShapeGuard | None = None
    keys: LastKeys | None = None
    composites: Composites = field(default_factory=Composites)
    complete: bool = False
    position_changed: bool = False
    emptied: list[Change | Ready] = field(default_factory=list)
    """Truncates to be handed on first: the position was lost, and all rows are read again."""
    existing: frozenset[int] = field(default_factory=frozenset)
    """Tables that were there when the task was opened."""
    returning: list[str] = field(default_factory=list)
    """Tables that come and of which readers may have rows of an earlier time."""
    look_due: bool = False
    """The next round looks at tables."""
    told: set[tuple[int, str]] = field(default_factory=set)
    identities_set: int = 0
    connector: str = ""
    application: str = ""
    signals: Signals = field(default_factory=Signals)

    @property
    def loading(self) -> list[str]:
        """Tables of which readers do not have all rows; not more names than a record should hold."""
        return [*(self.snapshot.loading if self.snapshot else ()), *self.returning][:LOADING_MAX]

    def told_once(self, what: tuple[int, str]) -> bool:
        """False when it was said before."""
        is_new = what not in self.told
        self.told.add(what)
        return is_new

    def observe(self) -> None:
        """From now on the snapshot is shown every event."""
        assert self.changes
        self.changes.observer = self.snapshot

    def lend(self, shaper: Shaper, module: ModuleType) -> None:
        """Rows that were read may become records natively."""
        if self.snapshot:
            self.snapshot.writer = RowWriter(shaper, module)

    def own_reader(self) -> Reader:
        if self.reader is None or self.reader.is_broken():
            self.reader = Reader(connect(self.settings, self.application), self.settings)
        return self.reader

    def position_json(self, ts_us: int) -> JsonObject:
        if ts_us:
            self.position.ts_ms = ts_us // 1000
        if self.snapshot:
            self.position.snapshot = self.snapshot.to_json()
        if self.changes:
            self.position.mark_lsn = self.changes.marked_lsn
        self.position.quarantine = self.quarantine.to_json() if self.quarantine else None
        self.position.shapes = self.shapes.to_json() if self.shapes else None
        if self.keys:
            self.position.keys = self.keys.to_json()
        return self.position.to_json()

    def look_for_returns(self) -> None:
        """Raises when a table that is held back is asked for: it comes back with a new session."""
        if self.quarantine and self.quarantine.due:
            raise CdcError(TABLE_RETURNS, "a table that was held back is asked for")

    def close(self) -> None:
        """Lets go of every connection and file; never raises."""
        if self.ahead:
            self.ahead.close()
        if self.stream:
            self.stream.close()
        if self.readers:
            with contextlib.suppress(psycopg.Error, OSError):
                self.readers.close()
        for connection in (self.reader.connection if self.reader else None, self.catalog):
            if connection is not None:
                try:
                    connection.close()
                except psycopg.Error as exc:
                    log.debug("close error=%s", translate(exc))


def open_session(
    settings: Settings,
    context: TaskContext,
    application: str,
    stored: StoredPosition | None,
    troubles: Mapping[str, CdcError] | None = None,
) -> Session:
    """`troubles`: tables that are to be held back from now on, and why."""
    catalog = connect(settings, application)
    session: Session | None = None
    quarantine = Quarantine(stored.quarantine if stored else None, settings, getattr(context, "jobs", tuple))
    quarantine.lift()
    try:
        quarantine.hold(_with_those_alike(catalog, stored, troubles or {}))
        settings = quarantine.applied(settings)
        position = stored or _nowhere(settings)
        session = Session(settings, position, catalog, quarantine=quarantine)
        session.connector, session.application = context.connector, application
        session.position_changed = quarantine.changed
        _open(session, context, application, stored is None)
    except psycopg.Error as exc:
        (session or catalog).close()
        raise translate(exc, {"slot": settings.slot}) from exc
    except CdcError:
        (session or catalog).close()
        raise
    return session


def _with_those_alike(
    catalog: AdminConnection, stored: StoredPosition | None, troubles: Mapping[str, CdcError]
) -> Mapping[str, CdcError]:
    """Also all others that are still to be read and may not be: each would end a session of its own otherwise."""
    if stored is None or not stored.snapshot or all(error.code != TABLE_CLOSED for error in troubles.values()):
        return troubles
    waiting = {table.oid: table.full_name for _, table in tables.restored(catalog, stored.snapshot).tables()}
    names = sorted(waiting[oid] for oid in slots.unreadable(catalog, waiting))
    return {
        **{name: CdcError(TABLE_CLOSED, "the role may not read it", where={"table": name}) for name in names},
        **troubles,
    }


def _nowhere(settings: Settings) -> StoredPosition:
    return StoredPosition("", 0, settings.slot, 0, 0, 0)


def _open(session: Session, context: TaskContext, application: str, first: bool) -> None:
    settings, catalog = session.settings, session.catalog
    if not first and settings.snapshot_mode == "initial_only" and is_loaded(session.position.snapshot):
        session.complete = True
        return
    slots.require_split(catalog, settings)
    slots.take_over(catalog, settings.slot, context.stopping)
    session.feedback_s = min(
        FEEDBACK_S_MAX, settings.raw["status.update.interval.ms"] / 1000, _sender_timeout_s(catalog) / 3
    )
    stream = session.stream = connect_stream(session, application)
    system = stream.identify()
    # Before the publication is touched: a connector that may not run must not change anything.
    starts_over = not first and not safety.still_there(session, stream, context.beat)
    if first and settings.filters.share.count > 1 and settings.raw["position.lost.policy"] == "resnapshot":
        # Another slot's task may have handed on rows of these tables that are gone by now.
        starts_over = settings.snapshot_mode != "no_data"
    first = first or starts_over
    # A published table without an identity refuses updates.
    identity.set_of(session, slots.candidates(catalog, settings))
    before = operations.let_through(catalog, settings.publication)
    if tables.publish(session):
        operations.altered_by_us(session, before)
    if first:
        slots.check_readable(catalog, settings)
        session.position = _first_position(session, system)
    session.position.timeline = system.timeline
    failover.follow(catalog, settings, slots.find_slot(catalog, settings.slot), stream)
    planner = _planner(session)
    if starts_over:
        session.emptied = safety.emptied(catalog, settings, planner, session.position.safe_lsn)
    template = source_template(settings.prefix, settings.dbname)
    changes = session.changes = _decoder(session, planner, template)
    session.ahead = aheads.Ahead(
        Spool(context.state_dir, f"{context.connector}-{context.task}", settings.raw["spool.max.bytes"])
    )
    session.ahead.attach(changes)
    _prepare_rows(session, tables.at_start(session, context.task_epoch, first), template)
    binary = turning.enter(session, context, planner.catalog)
    session.fallback = Fallback(**binary) if binary else None
    ahead = settings.raw["transaction.streaming"] and not binary
    if session.readers:
        stream.watch(session.readers.signal)
    stream.start(settings.slot, session.position.safe_lsn, settings.publication, ahead=ahead, binary=bool(binary))
    log.info("streaming slot=%s lsn=%s ahead=%s", settings.slot, format_lsn(session.position.safe_lsn), ahead)
    hit("postgres.streaming")


def _decoder(session: Session, planner: Planner, template: JsonObject) -> Changes:
    settings = session.settings
    changes = Changes(lambda relation: _resolve(session, planner, relation), template, settings.skipped)
    # Every slot has all messages.
    changes.want_message = lambda prefix: settings.slot_number == 0 and _wanted_message(settings, prefix)
    if settings.raw["replication.origin"] == "none":
        changes.want_origin = lambda name: False
    changes.skips_same = settings.raw["skip.messages.without.change"]
    changes.marked_lsn = session.position.mark_lsn
    keys = session.keys
    if keys:
        changes.expired = lambda lsn: _expired(keys, session.composites, lsn)
    changes.moved = lambda plan, data: tables.moved(session, plan, data)
    if settings.raw["provide.transaction.metadata"]:
        changes.orders = Orders(transaction_topic(settings.raw))
    return changes


def _expired(keys: LastKeys, composites: Composites, lsn: int) -> Iterable[int]:
    return {*keys.expired(lsn), *composites.passed(lsn)} if keys.waiting or composites.waiting else ()


def _planner(session: Session) -> Planner:
    """How tables are read; a table that is held back, or comes back, has no shape that it must keep."""
    settings = session.settings
    session.shapes = ShapeGuard(settings.raw["schema.change.policy"], settings.filters, session.position.shapes)
    for table in (*settings.filters.held, *(session.quarantine.lifted if session.quarantine else ())):
        session.shapes.forget(table)
    session.keys = LastKeys(session.position.keys, lambda: log_end(session.catalog))
    return replace(planner_of(session.catalog, settings), last=session.keys)


def _check_rows(session: Session, plan: Plan) -> None:
    """A chunk of rows."""
    if session.shapes:
        session.shapes.check(plan)
    if session.keys:
        session.keys.seen(plan.relation, tuple(column.name for column in plan.table.key_columns))


def _prepare_rows(session: Session, progress: Progress, template: JsonObject) -> None:
    """Everything that reads rows beside the stream; it opens connections when there is something to read."""
    settings, application = session.settings, session.application
    raw = settings.raw
    limits = Limits(raw["snapshot.max.threads"], raw["snapshot.chunk.max.bytes"], raw["snapshot.inflight.max.bytes"])
    session.readers = Readers(lambda: Reader(connect(settings, application), settings), limits.threads)
    loader = Loader(progress, session.readers, limits, lambda: _is_busy(session))
    loader.bind = lambda load: tables.bind(session, load)
    session.snapshot = Snapshot(loader, template, lambda: _current(session.catalog))
    session.snapshot.check = lambda plan: _check_rows(session, plan)
    if not session.snapshot.finished:
        session.observe()


def _current(connection: AdminConnection) -> TxSnapshot:
    row = connection.execute(f"select {SNAPSHOT}").fetchone()
    assert row
    return TxSnapshot.parse(row[0])


def _is_busy(session: Session) -> bool:
    """Others keep more of the server's backends at work than the configuration lets pass."""
    most = session.settings.raw["snapshot.load.max.backends"]
    if not most:
        return False
    row = session.catalog.execute(
        "select count(*) filter (where state = 'active' and backend_type = 'client backend'),"
        # What is no business of the role's is null.
        " count(*) filter (where backend_type is null) from pg_stat_activity"
        " where application_name is distinct from current_setting('application_name')"
    ).fetchone()
    active, hidden = row or (0, 0)
    if hidden and session.told_once((0, "load")):
        text = "the role does not see what others do, which snapshot.load.max.backends counts; grant it %s hidden=%d"
        log.warning(text, "pg_read_all_stats", hidden)
    return bool(active > most)


def _sender_timeout_s(connection: AdminConnection) -> float:
    row = connection.execute("select setting::int from pg_settings where name = 'wal_sender_timeout'").fetchone()
    return row[0] / 1000 if row and row[0] else FEEDBACK_S_MAX * 3


def _first_position(session: Session, identity: SystemIdentity) -> StoredPosition:
    """A task that never ran: its slot is made, or one that is there is taken over as it stands."""
    settings, catalog = session.settings, session.catalog
    slot = slots.find_slot(catalog, settings.slot)
    if slot is None:
        lsn = slots.create(catalog, settings)
        hit("postgres.slot_created")
    else:
        slots.check_kind(slot, settings.dbname)
        if slot.wal_status == "lost" or slot.confirmed_lsn is None:
            raise CdcError(SLOT_LOST, "the slot has lost WAL that it needed", where={"slot": settings.slot})
        # After a loss another slot may be given, of an earlier place: what was handed on does not come again.
        lsn = max(slot.confirmed_lsn, session.position.safe_lsn)
        log.info("slot found and taken over slot=%s lsn=%s", settings.slot, format_lsn(lsn))
    return StoredPosition(identity.system_id, identity.timeline, settings.slot, 0, 0, lsn)


def _resolve(session: Session, planner: Planner, relation: Relation) -> Plan | None:
    """The plan of a relation that the stream describes; tells of schema changes and of types without a mapping."""
    settings, changes = session.settings, session.changes
    if not settings.filters.table(relation.schema, relation.table):
        return None
    plan = planner.plan(relation)
    if session.shapes:
        session.shapes.check(plan)
    assert changes
    old = changes.plan(relation.oid)
    name = f"{relation.schema}.{relation.table}"
    if old and old.table != plan.table:
        log.info(
            "table changed table=%s %s", name, " ".join(f"{k}={v}" for k, v in changed(old.table, plan.table).items())
        )
    for column in plan.guessed:
        if session.told_once((relation.oid, column)):
            log.info("type has no mapping and is delivered as text table=%s column=%s", name, column)
    if name == settings.filters.signals:
        changes.listeners[relation.oid] = session.signals.take
    if session.snapshot:
        tables.discover(session, relation)
    return plan


def _wanted_message(settings: Settings, prefix: str) -> bool:
    include = settings.raw["message.prefix.include.list"]
    exclude = settings.raw["message.prefix.exclude.list"]
    if include:
        return any(re.fullmatch(pattern, prefix, re.I) for pattern in include)
    return not (exclude and any(re.fullmatch(pattern, prefix, re.I) for pattern in exclude))
