"""Which tables are captured, and of which the rows have still to be read: at the start, and while the stream runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import psycopg
from cdcworker.connectors.capture.config.table_names import TableName, rows_wanted
from cdcworker.connectors.capture.errors import CaptureErrors
from cdcworker.connectors.capture.snapshot.chunk_scheduler import ChunkScheduler
from cdcworker.connectors.capture.snapshot.chunks import ReadView, TableGone
from cdcworker.connectors.capture.snapshot.progress import (
    START,
    Origin,
    SnapshotLoad,
    SnapshotProgress,
    TableLoad,
    TaskStart,
    now_ms,
)
from cdcworker.connectors.capture.tables.truncate_barrier import ServerLog, TruncateBarrier
from cdcworker.connectors.postgres.config.settings import PostgresSettings
from cdcworker.connectors.postgres.decode.table_plan import TableDecodePlan
from cdcworker.connectors.postgres.doctor import replica_identity
from cdcworker.connectors.postgres.errors import CAPTURE, TABLE_LOCKED, translate
from cdcworker.connectors.postgres.pgoutput import Relation, format_lsn
from cdcworker.connectors.postgres.position import progress_of
from cdcworker.connectors.postgres.server import lock_holders as locks
from cdcworker.connectors.postgres.server import slot as slots
from cdcworker.connectors.postgres.server.publication_members import TREE
from cdcworker.connectors.postgres.snapshot.tx_snapshot import TransactionSnapshot
from cdcworker.connectors.postgres.source.session import Scope, Session
from cdcworker.connectors.postgres.transport.admin_connection import AdminConnection
from cdcworker.schemas.change import Change, EncodedRecords, JsonObject
from cdcworker.schemas.errors import CdcError

log = logging.getLogger(__name__)

LOCK_MS = 100
"""How long a look that alters the publication, or a read in the stream's stead, may wait for a lock on a table: the stream
waits as long. # INV-10"""

OUT = "table was out of the publication"
CAME = "table comes into the publication and may have been there before"
_AGAIN = "its rows are read again"
_LOST = "changes are lost: snapshot.mode or snapshot.include.collection.list leaves its rows out"

_ESTIMATE = f"""
with recursive {TREE}, guess as (
    select tree.root, sum(c.reltuples) filter (where c.reltuples >= 0) as rows
    from tree join pg_class c on c.oid = tree.oid group by 1
)
select r.oid, n.nspname, r.relname, coalesce(guess.rows, r.reltuples)::bigint
from guess join pg_class r on r.oid = guess.root join pg_namespace n on n.oid = r.relnamespace
"""


def loads_of(connection: AdminConnection, tables: Sequence[TableName], *, fresh: bool) -> list[TableLoad]:
    """Returns the loads of the tables, with the server's own estimate of how many rows there are; -1 where it has
    none."""
    guesses = described(connection, [table[0] for table in tables])
    return [TableLoad(*t, fresh=fresh, estimate=guesses[t[0]][2] if t[0] in guesses else -1) for t in tables]


def described(connection: AdminConnection, oids: Sequence[int]) -> dict[int, tuple[str, str, int]]:
    """Schema, name and estimated rows of each that exists."""
    rows = connection.execute(_ESTIMATE.encode(), {"oids": list(oids)}).fetchall() if oids else ()
    return {oid: (schema, name, rows) for oid, schema, name, rows in rows}


def restored(connection: AdminConnection, stored: JsonObject) -> SnapshotProgress:
    """Returns the stored progress, with the names that tables have now."""
    progress = progress_of(stored)
    progress.named(described(connection, [table.table_id for _, table in progress.tables() if not table.name]))
    return progress


def new_load(
    session: Session, identity: str, origin: Origin, tables: Sequence[TableName], *, fresh: bool = True
) -> SnapshotLoad:
    """Rows of these tables; a table that was never loaded needs every older transaction to have ended."""
    _, floor = slots.mark(session.catalog, session.settings, session.scope.connector)
    load = SnapshotLoad(
        identity, origin, loads_of(session.catalog, tables, fresh=fresh), floor=floor, started_ms=now_ms()
    )
    load.exempt = uncommitted(session.catalog, floor, fresh=fresh)
    return load


def bind(session: Session, load: SnapshotLoad) -> None:
    """Every older transaction has to have ended, as for a new load."""
    _, load.floor = slots.mark(session.catalog, session.settings, session.scope.connector)
    load.exempt = uncommitted(session.catalog, load.floor)


def moved(session: Session, plan: TableDecodePlan, data: bytes) -> None:
    """A row has come without a value that was not sent: under a new key, or in a topic that has to hold whole rows."""
    relation, snapshot = plan.relation, session.snapshot
    is_wanted = session.settings.completes_rows or wants_rows(
        session.settings, (relation.oid, relation.schema, relation.table)
    )
    if snapshot and is_wanted and snapshot.moved(plan, data):
        session.observe()


_REWRITES = """
select backend_xid::text::bigint from pg_stat_activity where backend_xid is not null
and pid in (select pid from pg_stat_progress_cluster where command = 'VACUUM FULL')
"""
_IDLE = """
union select backend_xid::text::bigint from pg_stat_activity where backend_xid is not null
and state in ('idle in transaction', 'idle in transaction (aborted)')
union select transaction::text::bigint from pg_prepared_xacts
"""


def uncommitted(connection: AdminConnection, floor: int, *, fresh: bool = False) -> list[int]:
    """Older transactions that certainly have not committed: idle between two statements, prepared, or amid VACUUM FULL. The
    last changes no row and nothing besides, so that also tables that were never loaded need not wait for it."""
    rows = connection.execute(_REWRITES if fresh else _REWRITES + _IDLE).fetchall()
    epoch = floor & ~0xFFFFFFFF
    return sorted(xid for (low,) in rows if (xid := epoch | low) < floor)


def at_start(session: Session, start: TaskStart, first: bool) -> SnapshotProgress:
    """Returns what is left to read: tables that are published and were not loaded by an earlier run."""
    settings, catalog = session.settings, session.catalog
    tables = slots.published(catalog, settings)
    session.scope.refresh_existing(_existing(catalog))
    stored = session.position.snapshot
    if stored is None and not first:
        # The connector streamed without a snapshot before; what it has handed on stays the truth.
        return SnapshotProgress(loaded=[oid for oid, _, _ in tables], start=start.epoch, start_attempt=start.attempt)
    progress = restored(catalog, stored) if stored else SnapshotProgress()
    members = slots.memberships(catalog, settings, [table[0] for table in tables])
    before = progress.joined, progress.left, progress.owed, len(progress.loaded)
    # At once, also where others are waited for: one that is back before these are must not go on as if it had not left.
    progress.forget_all_but(members.keys())
    expect(session, progress, tables, progress.returning(members))
    if not progress.owed:
        progress.forget_gaps(members)
    if before != (progress.joined, progress.left, progress.owed, len(progress.loaded)):
        # Stored at once: the log holds no changes of a table from the time in which it was not published.
        session.note_position_change()
    _tell_lifted(session, tables)
    for load in [load for load in progress.loads if not load.tables]:
        progress.end(load, "COMPLETED", now_ms())
    if first and not settings.is_temporary:
        slots.mark(catalog, settings, session.scope.connector)
    known = progress.known()
    added = [table for table in tables if table[0] not in known] if not progress.owed else []
    wanted = [table for table in added if wants_rows(settings, table)]
    progress.loaded.extend(sorted({table[0] for table in added} - {table[0] for table in wanted}))
    if added or first:
        session.note_position_change()
    if wanted:
        under_way = first or (progress.load(START) is None and not progress.loaded)
        load = new_load(session, START, "start", wanted)
        load.id = START if under_way else f"tables-{load.floor}"
        progress.loads.append(load)
        log.info("snapshot tables=%d of=%d", len(wanted), len(tables))
    if settings.snapshot_mode == "always" and (progress.start, progress.start_attempt) != start:
        _again(session, progress, tables, f"start-{start.epoch}" + (f"-{start.attempt}" if start.attempt else ""))
    progress.start, progress.start_attempt = start
    return progress


def _tell_lifted(session: Session, tables: Sequence[TableName]) -> None:
    """Tables that were held back, whose rows the config leaves out."""
    lifted = session.scope.quarantine.lifted if session.scope.quarantine else ()
    for table in tables:
        if f"{table[1]}.{table[2]}" in lifted and not wants_rows(session.settings, table):
            log.warning("table was held back table=%s.%s: %s", table[1], table[2], _LOST)


def _existing(connection: AdminConnection) -> frozenset[int]:
    rows = connection.execute("select oid from pg_class where relkind in ('r', 'p')")
    return frozenset(row[0] for row in rows)


def _again(session: Session, progress: SnapshotProgress, tables: Iterable[TableName], identity: str) -> None:
    """All rows once more at this start, unless an earlier start's are still being read."""
    if any(load.origin == "start" for load in progress.loads):
        return
    loaded = set(progress.loaded)
    wanted = [table for table in tables if table[0] in loaded and wants_rows(session.settings, table)]
    if wanted:
        progress.loads.append(new_load(session, identity, "start", wanted, fresh=False))
        session.note_position_change()


def wants_rows(settings: PostgresSettings, table: TableName) -> bool:
    return rows_wanted(
        f"{table[1]}.{table[2]}",
        mode=settings.snapshot_mode,
        patterns=settings.raw["snapshot.include.collection.list"],
        signals=settings.filters.signals,
    )


# -- while the stream runs --------------------------------------------------------------------------------------------


def discover(session: Session, relation: Relation) -> None:
    """A table that the stream names for the first time."""
    assert session.snapshot
    if session.snapshot.progress.knows(relation.oid):
        return
    tables = slots.published(session.catalog, session.settings)
    if all(table[0] != relation.oid for table in tables):
        # A partition whose changes come under its parent's name is described too.
        return
    members = slots.memberships(session.catalog, session.settings, [table[0] for table in tables])
    progress = session.snapshot.progress
    expect(session, progress, tables, progress.returning(members))
    if not progress.owed:
        # Of the known ones none has a higher number, or it would be waited for.
        progress.joined = max(progress.joined, *members.values())
        take_up(session, [(relation.oid, relation.schema, relation.table)])


def expect(
    session: Session, progress: SnapshotProgress, tables: Sequence[TableName], returning: AbstractSet[int]
) -> None:
    """These tables are taken up by the next look, behind a boundary."""
    session.scope.expect([f"{table[1]}.{table[2]}" for table in tables if table[0] in returning])
    progress.owed = bool(returning)


def take_up(session: Session, tables: Sequence[TableName]) -> None:
    """Tables made since the task was opened, under a publication of all tables, are streamed whole; others have only
    now come into view, so their rows have to be read."""
    snapshot, settings = session.snapshot, session.settings
    assert snapshot
    for_all = slots.is_for_all_tables(session.catalog, settings)
    streamed = [t for t in tables if (t[0] not in session.scope.existing and for_all) or not wants_rows(settings, t)]
    snapshot.progress.loaded.extend(table[0] for table in streamed)
    known = set(streamed)
    wanted = [table for table in tables if table not in known]
    if wanted:
        load = new_load(session, "", "table", wanted)
        load.id = f"tables-{load.floor}"
        session.observe()
        snapshot.loader.add(load)
        log.info("new tables are loaded tables=%s", ", ".join(table.full_name for table in load.tables))


def look(session: Session, boundary: TruncateBarrier, *, again: str = "") -> bool:
    """New tables that the filters choose: the publication is altered where that is ours, and their rows are read;
    `again`: so are those of all others, since the publication, which was altered by this, has left out operations.
    False: the stream is not at the boundary yet, and nothing has been done."""
    assert session.snapshot
    settings, (tables, members) = session.settings, _listed(session)
    progress, loader = session.snapshot.progress, session.snapshot.loader
    loader.forget_all_but(members.keys())
    returning = set(members) if again else progress.returning(members)
    expect(session, progress, tables, returning)
    waiting: AbstractSet[int] = frozenset()
    if returning:
        passed = boundary.passed({oid: members[oid] for oid in returning}, again, _log_of(session))
        if not passed:
            session.scope.put_off_look()
            return False
        waiting = returning - passed
        # Also tables made since the task was opened may lack rows.
        session.scope.refresh_existing(_existing(session.catalog))
        # Those that wait are forgotten below, as all that are back: they are owed as ones that nobody knows.
        expect(session, progress, tables, waiting)
        loader.note_progress()
    boundary.forget()
    back: AbstractSet[int] = frozenset()
    if again:
        back = {*progress.loaded, *(table.table_id for _, table in progress.tables())}
        loader.forget_gaps({})
    if progress.differs(members):
        back |= loader.forget_gaps(members)
    known = progress.known()
    found = [table for table in tables if table[0] not in known and table[0] not in waiting]
    if found:
        _identify(session, found)
        wanted = [table for table in found if wants_rows(settings, table)]
        # Also of those that wait: later nobody knows of it.
        wanted_at_all = [table for table in tables if wants_rows(settings, table)]
        tell_gaps(tables, back, wanted_at_all, "the publication left out operations of a table" if again else OUT)
        # What was forgotten is not known by its number: such a table may be a new one.
        tell_gaps([table for table in found if table not in wanted], returning - back, wanted, CAME)
        if progress.left:
            session.decoder.out += emptied(session, wanted)
        take_up(session, found)
        progress.came_back({table[0] for table in found})
    return True


def _log_of(session: Session) -> ServerLog:
    catalog, settings = session.catalog, session.settings
    return ServerLog(
        lambda: slots.mark(catalog, settings, session.scope.connector),
        lambda: slots.oldest(catalog),
        session.position.safe_lsn,
        format_lsn,
    )


def _identify(session: Session, found: Sequence[TableName]) -> None:
    try:
        session.scope.count_identities(
            replica_identity.set_configured(session.catalog, session.settings, found, LOCK_MS)
        )
    except (psycopg.Error, CdcError) as exc:
        # Tried again at the next start; the rows themselves do not need it.
        error = translate(exc)
        if session.scope.is_first_notice((1, error.code)):
            log.warning("replica identity not set error=%s", error)


def _listed(session: Session) -> tuple[list[TableName], dict[int, int]]:
    """Published tables with their entries."""
    settings, catalog = session.settings, session.catalog
    if settings.autocreate == "filtered":
        try:
            _publish(catalog, settings, LOCK_MS)
        except (psycopg.Error, CdcError) as exc:
            _tell_unaltered(session.scope, translate(exc))
    tables = slots.published(catalog, settings)
    return tables, slots.memberships(catalog, settings, [table[0] for table in tables])


def publish(catalog: AdminConnection, scope: Scope) -> bool:
    """Called at a start. Returns whether the publication was made or altered; an existing one stays as it is while a
    lock on a table is in the way: looks alter it."""
    settings = scope.settings
    try:
        return _publish(catalog, settings, locks.LOCK_MS)
    except CdcError as exc:
        # Without them rows only would be complete.
        is_needed = settings.snapshot_mode == "initial_only" or not slots.has_publication(catalog, settings)
        if exc.code != TABLE_LOCKED or is_needed:
            raise
        _tell_unaltered(scope, exc)
        return False


def _publish(catalog: AdminConnection, settings: PostgresSettings, lock_ms: int) -> bool:
    try:
        with locks.limited(catalog, lock_ms):
            return slots.ensure_publication(catalog, settings)
    except psycopg.errors.LockNotAvailable as exc:
        oids = [oid for oid, _, _ in slots.candidates(catalog, settings)]
        raise locks.refusal(catalog, oids, locks.PUBLISHING, "the publication") from exc


def _tell_unaltered(scope: Scope, error: CdcError) -> None:
    """The tables that are streamed go on; the doctor shows what is missing."""
    if scope.is_first_notice((0, error.code)):
        log.warning("publication not altered publication=%s error=%s", scope.settings.publication, error)


def tell_gaps(
    tables: Sequence[TableName], back: AbstractSet[int], wanted: Sequence[TableName], what: str = OUT
) -> None:
    """Changes of these have not been published for a while. # INV-9"""
    for table in tables:
        if table[0] in back:
            log.warning("%s table=%s.%s: %s", what, table[1], table[2], _AGAIN if table in wanted else _LOST)


def emptied(session: Session, tables: Sequence[TableName]) -> list[Change | EncodedRecords]:
    """A truncate for each of these, whose rows will be read: readers may have rows of an earlier time, of this table or
    of another one of its name. At a boundary."""
    emitter, out = session.emitter, list[Change | EncodedRecords]()
    assert emitter
    if "t" in session.settings.skipped:
        for _, schema, name in tables:
            text = "truncates are skipped: rows that were deleted meanwhile stay in the topics' readers table=%s.%s"
            log.warning(text, schema, name)
        return []
    for oid, _, _ in tables:
        try:
            plan, _ = session.connections.reader().look(oid)
        except TableGone:
            continue
        view = ReadView(TransactionSnapshot(0, 0, frozenset()), 0, time.time_ns() // 1000)
        out.append(emitter.stamp(plan, view, session.position.safe_lsn).truncate())
    return out


@dataclass(frozen=True, slots=True)
class SessionLoads:
    """The `LoadHost` of an open session."""

    session: Session
    scheduler: ChunkScheduler
    errors: CaptureErrors = CAPTURE

    @property
    def is_shared(self) -> bool:
        return self.session.settings.filters.share.count > 1

    def captured(self) -> list[TableName]:
        return slots.published(self.session.catalog, self.session.settings)

    def new_load(self, identity: str, origin: Origin, tables: Sequence[TableName]) -> SnapshotLoad:
        return new_load(self.session, identity, origin, tables, fresh=False)

    def observe(self) -> None:
        self.session.observe()
