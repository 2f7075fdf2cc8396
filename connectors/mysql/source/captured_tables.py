"""Which tables are captured, and of which the rows have still to be read: at the start, and while the stream runs.

The log holds the changes of all tables, whatever is captured: what a table that comes into view lacks are its rows of before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cdcworker.connectors.capture.config.table_names import TableName, rows_wanted
from cdcworker.connectors.capture.errors import CaptureErrors
from cdcworker.connectors.capture.snapshot.chunk_scheduler import ChunkScheduler
from cdcworker.connectors.capture.snapshot.progress import (
    START,
    Origin,
    SnapshotLoad,
    SnapshotProgress,
    TableLoad,
    TaskStart,
    now_ms,
)
from cdcworker.connectors.mysql.binlog.rows import BinlogRow
from cdcworker.connectors.mysql.config.settings import MySqlSettings
from cdcworker.connectors.mysql.decode.captured_plans import map_of
from cdcworker.connectors.mysql.decode.table_plan import TablePlan, TablePlanner, table_number
from cdcworker.connectors.mysql.errors import CAPTURE, ROW_IMAGE
from cdcworker.connectors.mysql.server.log_files import log_end
from cdcworker.connectors.mysql.server.steady_connection import SteadyConnection
from cdcworker.connectors.mysql.snapshot.read_view import GtidPlace
from cdcworker.connectors.mysql.snapshot.row_emitter import RowEmitter
from cdcworker.connectors.mysql.source.position import progress_of
from cdcworker.connectors.mysql.source.session import Session
from cdcworker.schemas.change import Change, EncodedRecords
from cdcworker.schemas.errors import CdcError

log = logging.getLogger(__name__)

_TABLES = (
    "select table_schema, table_name, table_rows from information_schema.tables"
    " where table_type in ('BASE TABLE', 'SYSTEM VERSIONED') order by table_schema, table_name"
)
LOST = "changes are lost: snapshot.mode or snapshot.include.collection.list leaves its rows out"


def listed(catalog: SteadyConnection, settings: MySqlSettings) -> dict[TableName, int]:
    """Returns the tables that the filters choose, of those that the user may see, with about how many rows they have."""
    found: dict[TableName, int] = {}
    for database, name, rows in catalog.ask(_TABLES):
        path = str(database), str(name)
        if settings.filters.table(*path):
            found[table_number(*path), *path] = -1 if rows is None else int(rows)
    return found


def wants_rows(settings: MySqlSettings, table: TableName) -> bool:
    return rows_wanted(
        f"{table[1]}.{table[2]}",
        mode=settings.snapshot_mode,
        patterns=settings.raw["snapshot.include.collection.list"],
        signals=settings.filters.signals,
    )


def load_of(
    identity: str, origin: Origin, tables: Iterable[TableName], estimates: Mapping[TableName, int], *, fresh: bool
) -> SnapshotLoad:
    """Returns a load of these tables. No transaction is older than its place in the log, so none has to be waited for."""
    loads = [TableLoad(*table, fresh=fresh, estimate=estimates.get(table, -1)) for table in tables]
    return SnapshotLoad(identity, origin, loads, started_ms=now_ms())


def at_start(session: Session, start: TaskStart, first: bool) -> SnapshotProgress:
    """Returns what is left to read: tables that are captured and were not loaded by an earlier run."""
    settings, found = session.settings, listed(session.catalog, session.settings)
    session.scope.capture(list(found))
    stored = session.position.snapshot
    if stored is None and not first:
        # The connector streamed without a snapshot before; what it has handed on stays the truth.
        return SnapshotProgress(loaded=[table[0] for table in found], start=start.epoch, start_attempt=start.attempt)
    progress = progress_of(stored) if stored else SnapshotProgress()
    progress.named({number: (database, name, rows) for (number, database, name), rows in found.items()})
    if progress.forget_all_but({table[0] for table in found}):
        session.note_position_change()
    for load in [load for load in progress.loads if not load.tables]:
        progress.end(load, "COMPLETED", now_ms())
    known = progress.known()
    added = [table for table in found if table[0] not in known]
    # The first look takes them up, at a place of the stream behind which nothing of before comes.
    owed = {table for table in added if returns(progress, table)}
    progress.owed = bool(owed)
    wanted = [table for table in added if wants_rows(settings, table) and table not in owed]
    progress.loaded.extend(table[0] for table in added if table not in wanted and table not in owed)
    if added or first:
        session.note_position_change()
    if wanted:
        under_way = first or (progress.load(START) is None and not progress.loaded)
        identity = START if under_way else f"tables-{session.position.number}"
        progress.loads.append(load_of(identity, "start", wanted, found, fresh=True))
        log.info("snapshot tables=%d of=%d", len(wanted), len(found))
    if settings.snapshot_mode == "always" and (progress.start, progress.start_attempt) != start:
        _again(session, progress, found, f"start-{start.epoch}" + (f"-{start.attempt}" if start.attempt else ""))
    progress.start, progress.start_attempt = start
    return progress


def returns(progress: SnapshotProgress, table: TableName) -> bool:
    """Returns whether readers may have rows of an earlier time of a table that comes: it was forgotten, or nobody knows which were."""
    return progress.left and (not progress.gone or table[0] in progress.gone)


def _again(session: Session, progress: SnapshotProgress, found: Mapping[TableName, int], identity: str) -> None:
    """All rows once more at this start, unless an earlier start's are still being read."""
    if any(load.origin == "start" for load in progress.loads):
        return
    loaded = set(progress.loaded)
    wanted = [table for table in found if table[0] in loaded and wants_rows(session.settings, table)]
    if wanted:
        progress.loads.append(load_of(identity, "start", wanted, found, fresh=False))
        session.note_position_change()


def incomplete(session: Session, plan: TablePlan, row: BinlogRow) -> None:
    """A row has come without a value that was not logged and that readers need: it is read again. CdcError `mysql.row_image` for an
    insert that cannot be."""
    snapshot, settings = session.snapshot, session.settings
    database, name = plan.table.path
    is_wanted = settings.completes_rows or wants_rows(settings, (plan.table.table_id, database, name))
    if row.before is None and not (is_wanted and plan.table.key):
        why = (
            "no rows are read of the table"
            if plan.table.key
            else "the table has no key by which it could be read again"
        )
        text = f"an insert was logged without columns that it does not name, and {why}"
        raise CdcError(ROW_IMAGE, text, where={"table": plan.name})
    if snapshot and is_wanted and plan.table.key and snapshot.moved(plan, row):
        session.observe()


# -- while the stream runs --------------------------------------------------------------------------------------------


def look(session: Session) -> None:
    """Takes up tables that the filters choose and that are not known yet. Called between two transactions."""
    snapshot, scope = session.snapshot, session.scope
    assert snapshot
    progress, loader = snapshot.progress, snapshot.loader
    found = listed(session.catalog, session.settings)
    scope.capture(list(found))
    loader.forget_all_but({table[0] for table in found})
    known = progress.known()
    added = [table for table in found if table[0] not in known]
    back = [table for table in added if returns(progress, table)]
    passed = _passed(session, back)
    if back_now := [table for table in back if table[0] in passed]:
        wanted = [table for table in back_now if wants_rows(session.settings, table)]
        for table in back_now:
            log.warning("table comes back table=%s.%s: %s", *table[1:], "read again" if table in wanted else LOST)
        session.decoder.out += emptied(session, wanted)
        progress.came_back({table[0] for table in back_now})
    owed = [table for table in back if table[0] not in passed]
    if progress.owed is not bool(owed):
        progress.owed = bool(owed)
        loader.note_progress()
    _take_up(session, [table for table in added if table not in owed], found)


def _passed(session: Session, back: Sequence[TableName]) -> set[int]:
    """Returns those of the tables that may be emptied: the stream has come to where the log ended when they were first seen."""
    returning = session.scope.returning
    for number in returning.keys() - {table[0] for table in back}:
        del returning[number]
    if new := [table[0] for table in back if table[0] not in returning]:
        place = GtidPlace(log_end(session.catalog.get(), session.facts).gtids)
        returning.update(dict.fromkeys(new, place))
    passed = {number for number, place in returning.items() if session.log_place >= place}
    for number in passed:
        del returning[number]
    return passed


def _take_up(session: Session, tables: Sequence[TableName], estimates: Mapping[TableName, int]) -> None:
    snapshot = session.snapshot
    assert snapshot
    if not tables:
        return
    wanted = [table for table in tables if wants_rows(session.settings, table)]
    snapshot.progress.loaded.extend(table[0] for table in tables if table not in wanted)
    snapshot.loader.note_progress()
    if wanted:
        identity = f"tables-{session.position.number}"
        while snapshot.progress.load(identity) is not None:
            identity += "+"
        session.observe()
        snapshot.loader.add(load_of(identity, "table", wanted, estimates, fresh=True))
        log.info("new tables are loaded tables=%s", ", ".join(f"{table[1]}.{table[2]}" for table in wanted))


def emptied(session: Session, tables: Iterable[TableName]) -> list[Change | EncodedRecords]:
    """A truncate for each of these, whose rows will be read: readers may have rows of an earlier time. At a boundary."""
    assert session.emitter
    return truncates(session.settings, session.state.planner, session.emitter, tables)


def truncates(
    settings: MySqlSettings, planner: TablePlanner, emitter: RowEmitter, tables: Iterable[TableName]
) -> list[Change | EncodedRecords]:
    """Returns the changes by which readers empty these tables; none where truncates are skipped."""
    if "t" in settings.skipped:
        log.warning("truncates are skipped: rows that were deleted meanwhile stay in the topics' readers")
        return []
    out: list[Change | EncodedRecords] = []
    for _, database, name in tables:
        known = planner.catalog(database, name)
        described = None if known is None else map_of(known)
        plan = None if described is None else planner.plan(described)
        if plan is not None:
            out.append(emitter.truncate(plan, time.time_ns() // 1000))
    return out


@dataclass(frozen=True, slots=True)
class SessionLoads:
    """The `LoadHost` of an open session."""

    session: Session
    scheduler: ChunkScheduler
    errors: CaptureErrors = CAPTURE

    @property
    def is_shared(self) -> bool:
        return False

    def captured(self) -> list[TableName]:
        return list(listed(self.session.catalog, self.session.settings))

    def new_load(self, identity: str, origin: Origin, tables: Sequence[TableName]) -> SnapshotLoad:
        found = listed(self.session.catalog, self.session.settings)
        self.session.scope.capture(list(found))
        return load_of(identity, origin, tables, found, fresh=False)

    def observe(self) -> None:
        self.session.observe()
