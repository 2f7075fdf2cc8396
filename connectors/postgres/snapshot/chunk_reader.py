"""Reading rows for a snapshot: one short transaction per chunk, through COPY and the stream's own parsers."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

import psycopg
from cdcworker.connectors.capture.column_mapping import Parser
from cdcworker.connectors.capture.snapshot.chunks import (
    ChunkRequest,
    KeyChanged,
    NotVisibleYet,
    ReadChunk,
    ReadView,
    TableGone,
    TableKeyless,
    TableLocked,
)
from cdcworker.connectors.capture.snapshot.row_identity import Identity, KeyTexts, identity
from cdcworker.connectors.postgres.config.settings import PostgresSettings
from cdcworker.connectors.postgres.decode.native_path import native
from cdcworker.connectors.postgres.decode.table_plan import TableDecodePlan, planner_of
from cdcworker.connectors.postgres.errors import PERMISSION, SERVER_ENCODING, TABLE_CLOSED, translate
from cdcworker.connectors.postgres.oversize_rows import ROW_TOO_LARGE
from cdcworker.connectors.postgres.pgoutput import parse_lsn
from cdcworker.connectors.postgres.server import lock_holders
from cdcworker.connectors.postgres.server.catalog import TableInfo
from cdcworker.connectors.postgres.server.publication_columns import Entry, PublishedColumns
from cdcworker.connectors.postgres.snapshot.copy_frames import CopyFrames, copy_frames
from cdcworker.connectors.postgres.snapshot.copy_text import copy_lines, key_of_line
from cdcworker.connectors.postgres.snapshot.tx_snapshot import TransactionSnapshot
from cdcworker.connectors.postgres.transport.admin_connection import AdminConnection
from cdcworker.connectors.postgres.transport.server_encoding import NO_ENCODING, NOT_UTF8, is_lacking, unreadable
from cdcworker.connectors.postgres.transport.server_functions import END_OF_LOG, SNAPSHOT
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit
from psycopg import pq, sql

log = logging.getLogger(__name__)

PIECE_BYTES: Final = 256 * 1024
PIECE_ROWS: Final = 2_000
"""Of a table without a key, handed on at a time."""


@dataclass(slots=True)
class CopiedChunk(ReadChunk):
    """Rows as COPY gave them, by key."""

    plan: TableDecodePlan
    rows: dict[Identity, tuple[bytes, KeyTexts]] | CopyFrames = field(default_factory=dict)

    def left(self) -> CopyFrames | list[bytes]:
        """The rows that no newer event has touched."""
        return self.rows if isinstance(self.rows, CopyFrames) else [line for line, _ in self.rows.values()]

    def key_texts(self) -> Iterator[KeyTexts]:
        """The keys of the rows that no newer event has touched."""
        if not isinstance(self.rows, CopyFrames):
            yield from (texts for _, texts in self.rows.values())
            return
        for at in self.rows.offsets():
            yield key_of_line(self.rows.line(at), self.plan.table.key, self.plan.taken)[1]


class ChunkReader:
    """Reads rows over a connection of its own; used by one thread at a time."""

    def __init__(self, connection: AdminConnection, settings: PostgresSettings) -> None:
        self.connection = connection
        self._settings = settings
        self._planner = planner_of(connection, settings)
        self._core = native() if settings.raw["decoder.native"] else None
        self._own_socket = settings.raw["database.transport"] != "psycopg"
        self._published = PublishedColumns(connection, settings.publication)

    def begin(self, oid: int, lock_ms: int | None = None) -> tuple[ReadView, TableDecodePlan, TableInfo]:
        """Open the read: lock first, snapshot second. # A rewrite of the table is invisible to an older snapshot."""
        catalog = self._planner.catalog
        info = catalog.table(oid)
        if info is None or not self._settings.filters.table(info.schema, info.table):
            raise TableGone
        name = sql.Identifier(info.schema, info.table)
        self._publication_of(info)
        self._execute(sql.SQL("begin isolation level repeatable read read only"))
        try:
            self.limit_locks(lock_ms)
            with rights((info.schema, info.table)):
                self._execute(sql.SQL("lock table {} in access share mode").format(name))
            info = catalog.table(oid)
            if info is None:
                raise TableGone
            # Of now: whoever held the lock may have added one.
            columns, _ = self._publication_of(info)
            plan = self._planner.plan(_restricted(info, columns).relation(), info)
            row = self._execute(
                sql.SQL(f"select {SNAPSHOT}, {END_OF_LOG}, (extract(epoch from clock_timestamp()) * 1000000)::bigint")
            ).fetchone()
            assert row
            return ReadView(TransactionSnapshot.parse(row[0]), parse_lsn(row[1]), row[2]), plan, info
        except (psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable) as exc:
            # Undefined: dropped or renamed between the two looks; the next attempt sees which.
            self.end()
            raise self.busy(oid) from exc
        except (TableGone, CdcError):
            self.end()
            raise

    def look(self, oid: int) -> tuple[TableDecodePlan, TableInfo]:
        """The table as it is now."""
        info = self._planner.catalog.table(oid)
        if info is None or not self._settings.filters.table(info.schema, info.table):
            raise TableGone
        columns, _ = self._publication_of(info)
        return self._planner.plan(_restricted(info, columns).relation(), info), info

    def limit_locks(self, lock_ms: int | None = None) -> None:
        """Called in a transaction: no lock is waited for longer than this, or than the configuration says."""
        timeout = sql.Literal(f"{lock_ms or self._settings.raw['snapshot.lock.timeout.ms']}ms")
        self._execute(sql.SQL("set local lock_timeout = {}").format(timeout))

    def busy(self, oid: int) -> TableLocked:
        """Outside of a transaction: another one's locks."""
        return TableLocked(lock_holders.holders(self.connection, [oid]))

    def _taking_bytes(self, statement: sql.Composed) -> bytes:
        """In a transaction, behind its last look at the catalog: rows come as they are where they are of no encoding. Names in
        the statement are text, and it is put into bytes as such first."""
        text = statement.as_bytes(self.connection)
        if is_lacking(self.connection):
            self._execute(sql.SQL("set local client_encoding = {}").format(sql.Literal(NO_ENCODING)))
        return text

    def is_broken(self) -> bool:
        return self.connection.closed or self.connection.pgconn.transaction_status != pq.TransactionStatus.IDLE

    def cancel(self) -> None:
        """Breaks off what is being read, called by another thread."""
        with suppress(psycopg.Error):
            self.connection.pgconn.get_cancel().cancel()

    def close(self) -> None:
        with suppress(psycopg.Error):
            self.connection.close()

    def end(self) -> None:
        if not self.connection.closed:
            self._execute(sql.SQL("rollback"))

    def chunk(self, want: ChunkRequest) -> CopiedChunk:
        """One short transaction; raises what keeps it from being read now."""
        view, plan, info = self.begin(want.table_id)
        try:
            if not plan.table.key:
                raise TableKeyless
            chunk = CopiedChunk(view, plan)
            if want.key_names and want.key_names != chunk.key_names:
                raise KeyChanged
            if not want.must_see.met(view.snap):
                raise NotVisibleYet
            hit("snapshot.snapshot_taken")
            if want.tells_absent and want.keys and self._hands_on_deletions(plan):
                with rights(plan.table.path), TableErrors(plan):
                    chunk.absent = self._absent(plan, info, want.keys)
            statement = self._taking_bytes(self._select(plan, info, want))
            with rights(plan.table.path):
                self._read(chunk, statement, want)
            hit("snapshot.rows_read")
        finally:
            self.end()
        hit("snapshot.read_ended")
        if len(want.keys) > 1 and len(chunk.unread) == len(want.keys):
            # Equal to them, but in other words (5.0 and 5.00): one by one it is plain whose row came.
            chunk = self.chunk(replace(want, keys=want.keys[:1]))
            chunk.unread = [list(key) for key in want.keys[1:]]
        return chunk

    def _hands_on_deletions(self, plan: TableDecodePlan) -> bool:
        """Returns whether a deletion of which only the key is known can be handed on. It holds the columns of the table's key:
        records under others cannot be deleted by it."""
        return "d" not in self._settings.skipped and set(plan.out.key) <= set(plan.table.key)

    def _absent(self, plan: TableDecodePlan, info: TableInfo, keys: Sequence[KeyTexts]) -> dict[Identity, KeyTexts]:
        """Returns those of the keys of which the table has no row: the server compares, not the texts. A row that the
        publication leaves out is there."""
        names = [sql.Identifier(f"k{number}") for number in range(len(plan.table.key))]
        wanted = sql.SQL(", ").join(
            sql.SQL("({}, {})").format(sql.Literal(number), sql.SQL(", ").join(_key_literals(plan, key)))
            for number, key in enumerate(keys)
        )
        same = sql.SQL(" and ").join(
            sql.SQL("t.{} = w.{}").format(sql.Identifier(column.name), name)
            for column, name in zip(plan.table.key_columns, names, strict=True)
        )
        text = "select w.n from (values {}) w (n, {}) where not exists (select from {} {} t where {})"
        statement = sql.SQL(text).format(
            wanted,
            sql.SQL(", ").join(names),
            sql.SQL("" if info.partitioned else "only"),
            sql.Identifier(*plan.table.path),
            same,
        )
        parsers = [plan.taken[index] for index in plan.table.key]
        absent = [keys[number] for (number,) in self._execute(statement).fetchall()]
        return {identity(values_of(key, parsers)): key for key in absent}

    def _read(self, chunk: CopiedChunk, statement: bytes, want: ChunkRequest) -> None:
        # Wider than was guessed: the rows so far are a chunk, the next one begins behind them. # INV-10
        if self._core is None:
            whole = _read_lines(self.connection, chunk, statement, want.bytes_max)
        else:
            with closing(self._frames(statement, want.bytes_max)) as pieces:
                frames = next(pieces)
            frames.plan, whole = chunk.plan, frames.whole
            chunk.rows, chunk.size, chunk.count = frames, frames.size, frames.count
            if frames.count:
                with TableErrors(chunk.plan):
                    line = frames.line(frames.last)
                    chunk.last = key_of_line(line, chunk.plan.table.key, chunk.plan.taken)[1]
        chunk.ended = whole and not want.keys and chunk.count < want.limit
        if len(want.keys) > 1 and not whole:
            with TableErrors(chunk.plan):
                found = {*chunk.key_texts(), *chunk.absent.values()}
            chunk.unread = [list(key) for key in want.keys if key not in found]

    def _frames(self, statement: bytes, bytes_max: int) -> Generator[CopyFrames]:
        assert self._core
        return copy_frames(self.connection, statement, bytes_max, self._core.walk, own_socket=self._own_socket)

    def rows(self, plan: TableDecodePlan, info: TableInfo) -> Generator[CopyFrames | list[bytes]]:
        """All rows of a table without a key, some at a time, inside the transaction that `begin` opened."""
        statement = self._taking_bytes(self._select(plan, info, None))
        with rights(plan.table.path):
            if self._core is not None:
                yield from self._frames(statement, PIECE_BYTES)
                return
            with closing(copy_lines(self.connection, statement)) as lines:
                while piece := list(islice(lines, PIECE_ROWS)):
                    yield piece

    # -- statements -------------------------------------------------------------------------------------------------

    def _select(self, plan: TableDecodePlan, info: TableInfo, want: ChunkRequest | None) -> sql.Composed:
        table = plan.table
        columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in table.columns)
        # ONLY, as it is published: rows of an inheriting table come under that table's name.
        source = sql.SQL("select {} from {}" if info.partitioned else "select {} from only {}")
        parts = [source.format(columns, sql.Identifier(*table.path))]
        conditions: list[sql.Composable] = []
        _, published = self._publication_of(info, locked=True)
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

    def _publication_of(self, info: TableInfo, *, locked: bool = False) -> Entry:
        found = self._published.of(info, locked=locked)
        if found is None:
            raise TableGone
        return found

    def _execute(self, statement: sql.SQL | sql.Composed) -> psycopg.Cursor[tuple[Any, ...]]:
        try:
            return self.connection.execute(statement)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable):
            raise
        except psycopg.Error as exc:
            raise translate(exc) from exc


def _read_lines(connection: AdminConnection, chunk: CopiedChunk, statement: bytes, bytes_max: int) -> bool:
    """Returns whether the server has sent all."""
    rows: dict[Identity, tuple[bytes, KeyTexts]] = {}
    chunk.rows, key, parsers = rows, chunk.plan.table.key, chunk.plan.taken
    with closing(copy_lines(connection, statement)) as lines, TableErrors(chunk.plan):
        for line in lines:
            found, chunk.last = key_of_line(line, key, parsers)
            if found in rows:
                # Two keys of one form: both are handed on, events are compared with the later one, as in `CopyFrames`.
                rows[chunk.count, found] = rows.pop(found)
            rows[found] = line, chunk.last
            chunk.size += len(line)
            chunk.count += 1
            if chunk.size > bytes_max:
                return False
    return True


_TABLES_OWN: Final = {PERMISSION: TABLE_CLOSED, ROW_TOO_LARGE: ROW_TOO_LARGE, SERVER_ENCODING: NOT_UTF8}


@contextmanager
def rights(path: Sequence[str]) -> Iterator[None]:
    """A right that is lacking is this table's trouble, not the connection's; so is a row that cannot be sent."""
    try:
        yield
    except (CdcError, psycopg.errors.InsufficientPrivilege, psycopg.errors.CharacterNotInRepertoire) as exc:
        error = translate(exc)
        code = _TABLES_OWN.get(error.code)
        if code is None:
            raise
        raise CdcError(code, error.message, where={**error.where, "table": ".".join(path)}) from exc


class TableErrors:
    """Errors about a table's rows name the table."""

    def __init__(self, plan: TableDecodePlan) -> None:
        self._table = ".".join(plan.table.path)

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, exc: BaseException | None, _trace: object) -> None:
        if isinstance(exc, CdcError):
            raise CdcError(exc.code, exc.message, where={**exc.where, "table": self._table}) from exc
        if isinstance(exc, ValueError | IndexError | OverflowError):
            raise unreadable(exc, {"table": self._table}) from exc


def _restricted(info: TableInfo, names: Sequence[str] | None) -> TableInfo:
    """The published columns only, where the publication has a column list (PostgreSQL 15)."""
    if names is None:
        return info
    return replace(info, columns={name: column for name, column in info.columns.items() if name in names})


def _key(plan: TableDecodePlan, texts: KeyTexts) -> sql.Composed:
    """A key as a row of literals, each cast to its column's type."""
    return sql.SQL("({})").format(sql.SQL(", ").join(_key_literals(plan, texts)))


def _key_literals(plan: TableDecodePlan, texts: KeyTexts) -> list[sql.Composed]:
    return [
        sql.SQL("{}::{}").format(sql.Literal(text), trusted(column.source_type))
        for column, text in zip(plan.table.key_columns, texts, strict=True)
    ]


def values_of(texts: KeyTexts, parsers: Sequence[Parser]) -> tuple[Any, ...]:
    """Returns a key's values, by the parsers of its columns."""
    return tuple(parse(text.encode()) for parse, text in zip(parsers, texts, strict=True))


def trusted(text: str) -> sql.SQL:
    """SQL that the server itself has printed (a type's name, a publication's row filter), or that has been checked."""
    return sql.SQL(text.replace("{", "{{").replace("}", "}}"))
