"""Reading rows for a snapshot: one short transaction per chunk, through COPY and the stream's own parsers."""

from __future__ import annotations

import logging
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from cdcworker.connectors.postgres.catalog import TableInfo
from cdcworker.connectors.postgres.config import Settings
from cdcworker.connectors.postgres.connection import AdminConnection
from cdcworker.connectors.postgres.errors import VALUE, translate
from cdcworker.connectors.postgres.relations import Plan, Planner
from cdcworker.connectors.postgres.visibility import TxSnapshot
from cdcworker.connectors.postgres.wire import parse_lsn
from cdcworker.schemas.change import Row
from cdcworker.schemas.errors import CdcError
from psycopg import sql

log = logging.getLogger(__name__)

ROWS_MIN = 200
ROWS_MAX = 20_000
"""Rows of one chunk: memory is bounded by bytes, this bounds what a wrong estimate of the width can cost."""

KeyTexts = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class View:
    """What one short transaction sees: its snapshot, and an LSN that no commit visible in it lies behind."""

    snap: TxSnapshot
    hw: int
    ts_us: int


@dataclass(slots=True)
class Chunk:
    view: View
    plan: Plan
    rows: list[tuple[Row, KeyTexts]] = field(default_factory=list)
    ended: bool = False
    """No rows of the table lie behind this chunk."""


class TableGone(Exception):
    """The table does not exist any more, or is no longer captured."""


class Busy(Exception):
    """Somebody holds a lock that the read would have to wait for."""


class NotVisibleYet(Exception):
    """The snapshot does not see a transaction that it must see."""


class Reader:
    """Reads rows over a connection of its own."""

    def __init__(self, connection: AdminConnection, planner: Planner, settings: Settings) -> None:
        self.connection = connection
        self._planner = planner
        self._settings = settings
        self._bytes_per_row = 0.0
        self._partitioned = False
        self._published: tuple[int, tuple[str, ...] | None, str | None] | None = None

    def current_snapshot(self) -> TxSnapshot:
        row = self.connection.execute("select pg_current_snapshot()::text").fetchone()
        assert row
        return TxSnapshot.parse(row[0])

    def begin(self, oid: int) -> tuple[View, Plan]:
        """Open the read: lock first, snapshot second. # A rewrite of the table is invisible to an older snapshot."""
        catalog = self._planner.catalog
        info = catalog.table(oid)
        if info is None or not self._settings.filters.table(info.schema, info.table):
            raise TableGone
        name = sql.Identifier(info.schema, info.table)
        timeout = sql.Literal(f"{self._settings.raw['snapshot.lock.timeout.ms']}ms")
        self._execute(sql.SQL("begin isolation level repeatable read read only"))
        try:
            self._execute(sql.SQL("set local lock_timeout = {}").format(timeout))
            self._execute(sql.SQL("lock table {} in access share mode").format(name))
            info = catalog.table(oid)
            if info is None:
                raise TableGone
            self._partitioned = info.partitioned
            plan = self._planner.plan(self._restrict(info).relation(), info)
            row = self._execute(
                sql.SQL(
                    "select pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text,"
                    " (extract(epoch from clock_timestamp()) * 1000000)::bigint"
                )
            ).fetchone()
            assert row
            return View(TxSnapshot.parse(row[0]), parse_lsn(row[1]), row[2]), plan
        except psycopg.errors.LockNotAvailable as exc:
            self.end()
            raise Busy from exc
        except psycopg.errors.UndefinedTable as exc:
            # Dropped or renamed between the two looks; the next attempt sees which.
            self.end()
            raise Busy from exc
        except (TableGone, CdcError):
            self.end()
            raise

    def end(self) -> None:
        if not self.connection.closed:
            self._execute(sql.SQL("rollback"))

    def read(self, view: View, plan: Plan, after: KeyTexts | None, keys: Sequence[KeyTexts] | None) -> Chunk:
        """The next rows behind `after` in key order, or exactly the rows of `keys`. Ends the transaction."""
        limit = len(keys) if keys is not None else self._row_limit()
        chunk = Chunk(view, plan)
        size, size_max = 0, 2 * self._settings.raw["snapshot.chunk.max.bytes"]
        try:
            statement = self._select(plan, after, keys, limit)
            key = plan.table.key
            with closing(self._copy(statement, plan)) as copied:
                for raw, row in copied:
                    chunk.rows.append((row, tuple((raw[i] or b"").decode() for i in key)))
                    size += sum(len(text) for text in raw if text) + 4 * len(raw)
                    if size > size_max and keys is None:
                        # Wider than was guessed: the rows so far are a chunk, the next one begins behind them. # INV-10
                        limit = 0
                        break
        finally:
            self.end()
        chunk.ended = keys is None and len(chunk.rows) < limit
        if chunk.rows:
            width = size / len(chunk.rows)
            self._bytes_per_row = max(width, self._bytes_per_row / 2)
        return chunk

    def rows(self, plan: Plan) -> Iterator[Row]:
        """All rows of a table without a key, inside the transaction that `begin` opened."""
        for _, row in self._copy(self._select(plan, None, None, None), plan):
            yield row

    def _row_limit(self) -> int:
        if not self._bytes_per_row:
            return ROWS_MIN
        return max(1, min(ROWS_MAX, int(self._settings.raw["snapshot.chunk.max.bytes"] / self._bytes_per_row)))

    def table_changed(self) -> None:
        """Another table: nothing is known of its width."""
        self._bytes_per_row = 0.0
        self._published = None

    # -- statements -------------------------------------------------------------------------------------------------

    def _select(
        self, plan: Plan, after: KeyTexts | None, keys: Sequence[KeyTexts] | None, limit: int | None
    ) -> sql.Composed:
        table = plan.table
        columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in table.columns)
        # ONLY, as it is published: rows of an inheriting table come under that table's name.
        source = sql.SQL("select {} from {}" if self._partitioned else "select {} from only {}")
        parts = [source.format(columns, sql.Identifier(*table.path))]
        conditions: list[sql.Composable] = []
        if self._published and self._published[2]:
            conditions.append(sql.SQL("({})").format(_trusted(self._published[2])))
        key = sql.SQL("({})").format(sql.SQL(", ").join(sql.Identifier(column.name) for column in table.key_columns))
        if keys is not None:
            conditions.append(sql.SQL("{} in ({})").format(key, sql.SQL(", ").join(_key(plan, k) for k in keys)))
        elif after is not None:
            conditions.append(sql.SQL("{} > {}").format(key, _key(plan, after)))
        if conditions:
            parts.append(sql.SQL("where {}").format(sql.SQL(" and ").join(conditions)))
        if limit is not None:
            order = sql.SQL(", ").join(sql.Identifier(column.name) for column in table.key_columns)
            parts.append(sql.SQL("order by {} limit {}").format(order, sql.Literal(limit)))
        return sql.SQL("copy ({}) to stdout").format(sql.SQL(" ").join(parts))

    def _copy(self, statement: sql.Composed, plan: Plan) -> Generator[tuple[list[bytes | None], Row]]:
        parsers = [parse for parse in plan.parsers if parse]
        cursor = self.connection.cursor()
        try:
            with cursor.copy(statement) as copy:
                while data := copy.read():
                    raw = copy_texts(bytes(data))
                    yield (
                        raw,
                        tuple(None if text is None else parse(text) for text, parse in zip(raw, parsers, strict=True)),
                    )
        except (ValueError, IndexError, OverflowError) as exc:
            table = ".".join(plan.table.path)
            raise CdcError(VALUE, "a column's text form could not be read", where={"table": table}) from exc
        except psycopg.Error as exc:
            raise translate(exc, {"table": ".".join(plan.table.path)}) from exc
        finally:
            cursor.close()

    def _restrict(self, info: TableInfo) -> TableInfo:
        """The published columns only, where the publication has a column list (PostgreSQL 15)."""
        if self._published is None or self._published[0] != info.oid:
            self._published = (info.oid, *self._publication_of(info))
        names = self._published[1]
        if names is None:
            return info
        return replace(info, columns={name: column for name, column in info.columns.items() if name in names})

    def _publication_of(self, info: TableInfo) -> tuple[tuple[str, ...] | None, str | None]:
        if self.connection.info.server_version < 150000:
            return None, None
        row = self._execute(
            sql.SQL(
                "select attnames::text[], rowfilter from pg_publication_tables"
                " where pubname = {} and schemaname = {} and tablename = {}"
            ).format(sql.Literal(self._settings.publication), sql.Literal(info.schema), sql.Literal(info.table))
        ).fetchone()
        if row is None:
            raise TableGone
        return (tuple(row[0]) if row[0] else None), row[1]

    def _execute(self, statement: sql.SQL | sql.Composed) -> psycopg.Cursor[tuple[Any, ...]]:
        try:
            return self.connection.execute(statement)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable):
            raise
        except psycopg.Error as exc:
            raise translate(exc) from exc


def _key(plan: Plan, texts: KeyTexts) -> sql.Composed:
    """A key as a row of literals, each cast to its column's type."""
    parts = (
        sql.SQL("{}::{}").format(sql.Literal(text), _trusted(column.source_type))
        for column, text in zip(plan.table.key_columns, texts, strict=True)
    )
    return sql.SQL("({})").format(sql.SQL(", ").join(parts))


def _trusted(text: str) -> sql.SQL:
    """SQL that the server itself has printed: a type's name, a publication's row filter."""
    return sql.SQL(text.replace("{", "{{").replace("}", "}}"))


_ESCAPES = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_ESCAPE = re.compile(rb"\\(.)", re.S)


def copy_texts(line: bytes) -> list[bytes | None]:
    """One line of COPY's text format."""
    fields = line[:-1].split(b"\t")
    if b"\\" not in line:
        return list(fields)
    return [None if text == b"\\N" else _ESCAPE.sub(_unescape, text) if b"\\" in text else text for text in fields]


def _unescape(match: re.Match[bytes]) -> bytes:
    return _ESCAPES.get(match.group(1), match.group(1))
