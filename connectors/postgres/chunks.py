"""Reading rows for a snapshot: one short transaction per chunk, through COPY and the stream's own parsers."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

import psycopg
from cdcworker.connectors.postgres.catalog import Catalog, TableInfo
from cdcworker.connectors.postgres.config import Settings
from cdcworker.connectors.postgres.connection import AdminConnection
from cdcworker.connectors.postgres.copying import KeyTexts, copy_lines, key_of_line
from cdcworker.connectors.postgres.errors import PERMISSION, TABLE_CLOSED, VALUE, translate
from cdcworker.connectors.postgres.frames import Frames, copy_frames
from cdcworker.connectors.postgres.lane import native
from cdcworker.connectors.postgres.relations import Plan, Planner
from cdcworker.connectors.postgres.standby import END_OF_LOG, SNAPSHOT
from cdcworker.connectors.postgres.visibility import TxSnapshot
from cdcworker.connectors.postgres.window import Identity
from cdcworker.connectors.postgres.wire import parse_lsn
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit
from psycopg import pq, sql

log = logging.getLogger(__name__)

ROWS_MIN: Final = 200
ROWS_MAX: Final = 20_000
"""Rows of one chunk: memory is bounded by bytes, this bounds what a wrong estimate of the width can cost."""
PUBLISHED_S: Final = 10.0
"""How long a publication's column list and row filter are taken for what they were."""

PIECE_BYTES: Final = 256 * 1024
PIECE_ROWS: Final = 2_000
"""Of a table without a key, handed on at a time."""


@dataclass(frozen=True, slots=True)
class View:
    """What one short transaction sees: its snapshot, and an LSN that no commit visible in it lies behind."""

    snap: TxSnapshot
    hw: int
    ts_us: int


@dataclass(slots=True)
class Chunk:
    """Rows as COPY gave them, by key."""

    view: View
    plan: Plan
    rows: dict[Identity, tuple[bytes, KeyTexts]] | Frames = field(default_factory=dict)
    last: KeyTexts | None = None
    size: int = 0
    count: int = 0
    ended: bool = False
    """No rows of the range lie behind this chunk."""

    @property
    def key_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.plan.table.key_columns)

    def left(self) -> Frames | list[bytes]:
        """The rows that no newer event has touched."""
        return self.rows if isinstance(self.rows, Frames) else [line for line, _ in self.rows.values()]


class TableGone(Exception):
    """The table does not exist any more, or is no longer captured."""


class Keyless(Exception):
    """The table has no key."""


class KeyChanged(Exception):
    """The table's key is not the one that its ranges go by."""


class Busy(Exception):
    """Somebody holds a lock that the read would have to wait for."""


class NotVisibleYet(Exception):
    """The snapshot does not see a transaction that it must see."""


@dataclass(frozen=True, slots=True)
class MustSee:
    """What a snapshot has to see before rows may be read in it."""

    floor: int = 0
    """Every transaction up to this id must have ended,"""
    exempt: frozenset[int] = frozenset()
    """but for these."""
    before: tuple[int, ...] = ()
    """Transactions that the stream has delivered."""

    def met(self, snap: TxSnapshot) -> bool:
        if self.floor and not snap.all_ended(self.floor, self.exempt):
            return False
        return all(snap.sees_delivered(xid) for xid in self.before)


@dataclass(frozen=True, slots=True)
class Want:
    """A range of one table in the order of its key, or exactly the rows of `keys`."""

    oid: int
    must_see: MustSee
    after: KeyTexts | None = None
    upto: KeyTexts | None = None
    keys: tuple[KeyTexts, ...] = ()
    key_names: tuple[str, ...] = ()
    """Of the columns that all these go by; empty: nothing is known of the table yet."""
    limit: int = ROWS_MIN
    bytes_max: int = 1 << 30
    filter: str = ""


class Reader:
    """Reads rows over a connection of its own; used by one thread at a time."""

    def __init__(self, connection: AdminConnection, settings: Settings) -> None:
        self.connection = connection
        self._settings = settings
        self._planner = Planner(Catalog(connection), settings.modes, settings.filters, settings.masks, settings.keys)
        self._core = native() if settings.raw["decoder.native"] else None
        self._own_socket = settings.raw["database.transport"] != "psycopg"
        self._published: dict[int, tuple[float, tuple[str, ...] | None, str | None]] = {}

    def begin(self, oid: int) -> tuple[View, Plan, TableInfo]:
        """Open the read: lock first, snapshot second. # A rewrite of the table is invisible to an older snapshot."""
        catalog = self._planner.catalog
        info = catalog.table(oid)
        if info is None or not self._settings.filters.table(info.schema, info.table):
            raise TableGone
        name = sql.Identifier(info.schema, info.table)
        columns, _ = self._publication_of(info)
        self._execute(sql.SQL("begin isolation level repeatable read read only"))
        try:
            self.limit_locks()
            with rights((info.schema, info.table)):
                self._execute(sql.SQL("lock table {} in access share mode").format(name))
            info = catalog.table(oid)
            if info is None:
                raise TableGone
            plan = self._planner.plan(_restricted(info, columns).relation(), info)
            row = self._execute(
                sql.SQL(f"select {SNAPSHOT}, {END_OF_LOG}, (extract(epoch from clock_timestamp()) * 1000000)::bigint")
            ).fetchone()
            assert row
            return View(TxSnapshot.parse(row[0]), parse_lsn(row[1]), row[2]), plan, info
        except (psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable) as exc:
            # Undefined: dropped or renamed between the two looks; the next attempt sees which.
            self.end()
            raise Busy from exc
        except (TableGone, CdcError):
            self.end()
            raise

    def look(self, oid: int) -> tuple[Plan, TableInfo]:
        """The table as it is now."""
        info = self._planner.catalog.table(oid)
        if info is None or not self._settings.filters.table(info.schema, info.table):
            raise TableGone
        columns, _ = self._publication_of(info)
        return self._planner.plan(_restricted(info, columns).relation(), info), info

    def limit_locks(self) -> None:
        """In a transaction: no lock is waited for longer than the configuration says."""
        timeout = sql.Literal(f"{self._settings.raw['snapshot.lock.timeout.ms']}ms")
        self._execute(sql.SQL("set local lock_timeout = {}").format(timeout))

    def is_broken(self) -> bool:
        return self.connection.closed or self.connection.pgconn.transaction_status != pq.TransactionStatus.IDLE

    def end(self) -> None:
        if not self.connection.closed:
            self._execute(sql.SQL("rollback"))

    def chunk(self, want: Want) -> Chunk:
        """One short transaction; raises what keeps it from being read now."""
        view, plan, info = self.begin(want.oid)
        try:
            if not plan.table.key:
                raise Keyless
            chunk = Chunk(view, plan)
            if want.key_names and want.key_names != chunk.key_names:
                raise KeyChanged
            if not want.must_see.met(view.snap):
                raise NotVisibleYet
            hit("snapshot.snapshot_taken")
            with rights(plan.table.path):
                self._read(chunk, self._select(plan, info, want), want)
            hit("snapshot.rows_read")
        finally:
            self.end()
        hit("snapshot.read_ended")
        return chunk

    def _read(self, chunk: Chunk, statement: sql.Composed, want: Want) -> None:
        # Wider than was guessed: the rows so far are a chunk, the next one begins behind them. # INV-10
        most = 1 << 62 if want.keys else want.bytes_max
        if self._core is None:
            whole = _read_lines(self.connection, chunk, statement, most)
        else:
            with closing(self._frames(statement, most)) as pieces:
                frames = next(pieces)
            frames.plan, whole = chunk.plan, frames.whole
            chunk.rows, chunk.size, chunk.count = frames, frames.size, frames.count
            if frames.count:
                with Named(chunk.plan):
                    line = frames.line(frames.last)
                    chunk.last = key_of_line(line, chunk.plan.table.key, chunk.plan.taken)[1]
        chunk.ended = whole and not want.keys and chunk.count < want.limit

    def _frames(self, statement: sql.Composed, bytes_max: int) -> Generator[Frames]:
        assert self._core
        return copy_frames(self.connection, statement, bytes_max, self._core.walk, own_socket=self._own_socket)

    def rows(self, plan: Plan, info: TableInfo) -> Generator[Frames | list[bytes]]:
        """All rows of a table without a key, some at a time, inside the transaction that `begin` opened."""
        statement = self._select(plan, info, None)
        with rights(plan.table.path):
            if self._core is not None:
                yield from self._frames(statement, PIECE_BYTES)
                return
            with closing(copy_lines(self.connection, statement)) as lines:
                while piece := list(islice(lines, PIECE_ROWS)):
                    yield piece

    # -- statements -------------------------------------------------------------------------------------------------

    def _select(self, plan: Plan, info: TableInfo, want: Want | None) -> sql.Composed:
        table = plan.table
        columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in table.columns)
        # ONLY, as it is published: rows of an inheriting table come under that table's name.
        source = sql.SQL("select {} from {}" if info.partitioned else "select {} from only {}")
        parts = [source.format(columns, sql.Identifier(*table.path))]
        conditions: list[sql.Composable] = []
        _, published = self._publication_of(info)
        conditions += [sql.SQL("({})").format(trusted(text)) for text in (published, want and want.filter) if text]
        key = sql.SQL("({})").format(sql.SQL(", ").join(sql.Identifier(column.name) for column in table.key_columns))
        if want is not None and want.keys:
            conditions.append(sql.SQL("{} in ({})").format(key, sql.SQL(", ").join(_key(plan, k) for k in want.keys)))
        elif want is not None:
            for sign, bound in ((">", want.after), ("<=", want.upto)):
                if bound is not None:
                    conditions.append(sql.SQL("{} {} {}").format(key, sql.SQL(sign), _key(plan, bound)))
        if conditions:
            parts.append(sql.SQL("where {}").format(sql.SQL(" and ").join(conditions)))
        if want is not None and not want.keys:
            order = sql.SQL(", ").join(sql.Identifier(column.name) for column in table.key_columns)
            parts.append(sql.SQL("order by {} limit {}").format(order, sql.Literal(want.limit)))
        return sql.SQL("copy ({}) to stdout").format(sql.SQL(" ").join(parts))

    def _publication_of(self, info: TableInfo) -> tuple[tuple[str, ...] | None, str | None]:
        """Column list and row filter (PostgreSQL 15); TableGone when the table is not published."""
        if self.connection.info.server_version < 150000:
            return None, None
        known = self._published.get(info.oid)
        if known is not None and time.monotonic() - known[0] < PUBLISHED_S:
            return known[1:]
        row = self._execute(
            sql.SQL(
                "select attnames::text[], rowfilter from pg_publication_tables"
                " where pubname = {} and schemaname = {} and tablename = {}"
            ).format(sql.Literal(self._settings.publication), sql.Literal(info.schema), sql.Literal(info.table))
        ).fetchone()
        if row is None:
            raise TableGone
        found = (tuple(row[0]) if row[0] else None), row[1]
        self._published[info.oid] = (time.monotonic(), *found)
        return found

    def _execute(self, statement: sql.SQL | sql.Composed) -> psycopg.Cursor[tuple[Any, ...]]:
        try:
            return self.connection.execute(statement)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable):
            raise
        except psycopg.Error as exc:
            raise translate(exc) from exc


def _read_lines(connection: AdminConnection, chunk: Chunk, statement: sql.Composed, bytes_max: int) -> bool:
    """Whether the server has sent all."""
    rows: dict[Identity, tuple[bytes, KeyTexts]] = {}
    chunk.rows, key, parsers = rows, chunk.plan.table.key, chunk.plan.taken
    with closing(copy_lines(connection, statement)) as lines, Named(chunk.plan):
        for line in lines:
            found, chunk.last = key_of_line(line, key, parsers)
            if found in rows:
                # Two keys of one form: both are handed on, events are compared with the later one, as in `Frames`.
                rows[chunk.count, found] = rows.pop(found)
            rows[found] = line, chunk.last
            chunk.size += len(line)
            chunk.count += 1
            if chunk.size > bytes_max:
                return False
    return True


@contextmanager
def rights(path: Sequence[str]) -> Iterator[None]:
    """A right that is lacking is this table's trouble, not the connection's."""
    try:
        yield
    except (CdcError, psycopg.errors.InsufficientPrivilege) as exc:
        error = translate(exc)
        if error.code != PERMISSION:
            raise
        raise CdcError(TABLE_CLOSED, error.message, where={**error.where, "table": ".".join(path)}) from exc


class Named:
    """Errors about a table's rows name the table."""

    def __init__(self, plan: Plan) -> None:
        self._table = ".".join(plan.table.path)

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, exc: BaseException | None, _trace: object) -> None:
        if isinstance(exc, CdcError):
            raise CdcError(exc.code, exc.message, where={**exc.where, "table": self._table}) from exc
        if isinstance(exc, ValueError | IndexError | OverflowError):
            text = "a column's text form could not be read"
            raise CdcError(VALUE, text, where={"table": self._table}) from exc


def _restricted(info: TableInfo, names: Sequence[str] | None) -> TableInfo:
    """The published columns only, where the publication has a column list (PostgreSQL 15)."""
    if names is None:
        return info
    return replace(info, columns={name: column for name, column in info.columns.items() if name in names})


def _key(plan: Plan, texts: KeyTexts) -> sql.Composed:
    """A key as a row of literals, each cast to its column's type."""
    parts = (
        sql.SQL("{}::{}").format(sql.Literal(text), trusted(column.source_type))
        for column, text in zip(plan.table.key_columns, texts, strict=True)
    )
    return sql.SQL("({})").format(sql.SQL(", ").join(parts))


def trusted(text: str) -> sql.SQL:
    """SQL that the server itself has printed (a type's name, a publication's row filter), or that has been checked."""
    return sql.SQL(text.replace("{", "{{").replace("}", "}}"))
