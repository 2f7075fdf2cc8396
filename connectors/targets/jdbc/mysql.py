"""MySQL and MariaDB as a target: rows go as literals, many in one statement."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pymysql
from cdcworker.connectors.jdbc_url import Address
from cdcworker.connectors.mysql_client.error_numbers import number_of
from cdcworker.connectors.mysql_client.login import Login
from cdcworker.connectors.sink_errors import TARGET_LOCKED, TARGET_UNREACHABLE, TARGET_VALUE
from cdcworker.connectors.targets.jdbc.changes import SHAPES_MAX, Places, RowsStep
from cdcworker.connectors.targets.jdbc.errors import TABLE_UNFIT, values_made
from cdcworker.connectors.targets.jdbc.ledger import SCHEMA, LedgerSql
from cdcworker.connectors.targets.jdbc.mysql_values import Literal, literal_of, rows_text
from cdcworker.connectors.targets.jdbc.naming import TableName
from cdcworker.connectors.targets.jdbc.rules import WriteRules
from cdcworker.connectors.targets.jdbc.shapes import Row, RowShape
from cdcworker.connectors.warehouses.mysql import connection as warehouse_connection
from cdcworker.connectors.warehouses.mysql import found_tables, statements, types
from cdcworker.connectors.warehouses.mysql.errors import from_pymysql, of_alter
from cdcworker.connectors.warehouses.source_types import TargetColumn
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from cdcworker.connectors.mysql_client.client import MySqlConnection

log = logging.getLogger(__name__)

_TEXT: Final = "varchar(191) character set utf8mb4 collate utf8mb4_bin"
LEDGER: Final = LedgerSql(
    (
        f"""create table if not exists {SCHEMA}.record_ledger (connector {_TEXT}, topic_id {_TEXT}, partition_number int,
            topic varchar(250) not null, next_offset bigint not null, task_epoch bigint not null, attempt bigint not null,
            primary key (connector, topic_id, partition_number)) engine = InnoDB""",
        f"""create table if not exists {SCHEMA}.record_refused (connector {_TEXT}, topic_id {_TEXT}, partition_number int,
            record_offset bigint, primary key (connector, topic_id, partition_number, record_offset)) engine = InnoDB""",
        f"""create table if not exists {SCHEMA}.record_floor (connector {_TEXT}, table_name {_TEXT}, position varbinary(16),
            primary key (connector, table_name)) engine = InnoDB""",
    ),
    "insert ignore",
    "",
    " lock in share mode",
)
_NEWEST: Final = (
    f"select 1 from information_schema.tables where table_schema = '{SCHEMA}' and table_name = 'record_floor'"
)
_LOCK: Final = "select get_lock('cdcworker.tables', 30)"
_UNLOCK: Final = "do release_lock('cdcworker.tables')"
IDLE_S: Final = 20.0
"""After so long a connection is opened anew before it is used."""
SESSION: Final = (
    # A transaction's statements follow each other at once. A session that stands still in one is of a process that was stopped: its
    # locks must not keep the next owner waiting. MySQL has one limit for all sessions that stand still.
    f"set session wait_timeout = {int(IDLE_S) + 10}",
)
_OF_TRANSACTIONS: Final = "set session idle_transaction_timeout = 5"
_STALE: Final = (1054, 1146, 1136)
"""A table is other than it was when it was looked at."""
_STATEMENT_BYTES: Final = 524_288
_KEY_TEXT: Final = f"varchar({types.CHARS_MAX})"


@dataclass(frozen=True, slots=True)
class _Table:
    """A table that fits a shape, and what writes into it."""

    shape: RowShape
    name: str
    literals: tuple[Literal, ...]
    key_literals: tuple[Literal, ...]
    others: bool
    """Whether there are unique indexes beside that of the key."""


class MySqlDatabase:
    """One connection to MySQL or MariaDB."""

    ledger_sql = LEDGER
    failures: tuple[type[Exception], ...] = (pymysql.Error, OSError)

    def __init__(self, address: Address, login: tuple[str, str], rules: WriteRules) -> None:
        """`login`: user and password."""
        self._address = address
        self._login = Login(
            ",".join(address.hosts), address.ports[0], *login, address.sslmode, address.sslrootcert or None
        )
        self._rules = rules
        self._connection: MySqlConnection | None = None
        self._tables: dict[tuple[TableName, int], _Table] = {}
        self._used = 0.0

    # Connection

    @property
    def connection(self) -> MySqlConnection:
        if not self.is_open:
            made = warehouse_connection.opened(self._login)
            for statement in SESSION:
                made.do(statement)
            if made.server.is_mariadb:
                made.do(_OF_TRANSACTIONS)
            self._connection = made
        assert self._connection is not None
        return self._connection

    @property
    def is_open(self) -> bool:
        return self._connection is not None and bool(self._connection.open)

    def close(self) -> None:
        made, self._connection = self._connection, None
        if made is not None:
            with contextlib.suppress(Exception):
                made.close()
        self.forget()

    def cancel(self) -> None:
        """Cuts the connection, which ends the statement for the client; the server undoes what it has not committed."""
        made = self._connection
        if made is not None and made._sock is not None:
            made._sock.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        self._tables.clear()

    def explained(self, failure: Exception) -> CdcError:
        if number_of(failure) in _STALE:
            return CdcError(TARGET_UNREACHABLE, f"a table has changed (error {number_of(failure)})")
        if not isinstance(failure, pymysql.Error):
            return CdcError(TARGET_UNREACHABLE, f"the connection failed ({type(failure).__name__})")
        return from_pymysql(failure)

    def refresh(self) -> None:
        now = time.monotonic()
        if now - self._used > IDLE_S:
            self.close()
        self._used = now
        if len(self._tables) > SHAPES_MAX:
            self.forget()

    def transaction(self) -> contextlib.AbstractContextManager[MySqlConnection]:
        return warehouse_connection.transaction(self.connection)

    def check(self) -> None:
        self.close()
        warehouse_connection.probe(self._login)

    # Tables

    def prepare_ledger(self, statements: Sequence[str]) -> None:
        if self.connection.one(_NEWEST) is not None:
            return
        with self._making():
            self._make_database(SCHEMA)
            for statement in statements:
                self.connection.do(statement)

    def prepare(self, shape: RowShape) -> None:
        place = (shape.table, id(shape))
        if place in self._tables:
            return
        target = self._target(shape)
        found = found_tables.find(self.connection, target.schema, target.table)
        if found is None or not set(shape.names) <= found.columns.keys() or self._rules.evolves:
            found = self._made(target)
        keyed = [set(names) == set(shape.key) for names in found.unique]
        if shape.fields and self._rules.insert_mode != "update":
            found_tables.check(target, found)
        if self._rules.insert_mode == "upsert" and shape.key and not any(keyed):
            text = f"upserts need a primary key or a unique index on {', '.join(shape.key)}"
            raise CdcError(TABLE_UNFIT, text, where={"table": target.plain_name})
        kinds = found.types
        by_name = {column.name: literal_of(column, kinds[column.name]) for column in shape.columns}
        literals, keys = (tuple(map(by_name.__getitem__, names)) for names in (shape.names, shape.key))
        self._tables[place] = _Table(shape, target.name, literals, keys, not all(keyed))

    def _target(self, shape: RowShape) -> statements.TargetTable:
        schema, table = shape.table.schema or self._address.schema, shape.table.table
        if schema.lower() in (SCHEMA, "mysql", "sys", "information_schema", "performance_schema"):
            text = "the database is the server's or the sink's own"
            raise CdcError(TABLE_UNFIT, text, where={"table": f"{schema}.{table}"})
        kinds = {column.name: _kind(column, column.name in shape.key) for column in shape.columns}
        return statements.TargetTable(
            schema, table, types.fitting(kinds, shape.key), shape.key, shape.columns, position="",
            collation=self.connection.server.collation,
        )  # fmt: skip

    def _made(self, target: statements.TargetTable) -> found_tables.FoundTable:
        """Returns the table once it is created, or altered, as far as the rules let it be."""
        with self._making():
            found = found_tables.find(self.connection, target.schema, target.table)
            if found is None:
                if not self._rules.creates:
                    raise _unfit(target, "the table is not there")
                self._make_database(target.schema)
                self._alter(target, statements.create_table(target), target.key)
            elif self._rules.evolves:
                clauses = _clauses(target, found)
                if clauses:
                    self._alter(target, f"alter table {target.name} {', '.join(clauses.values())}", tuple(clauses))
            else:
                missing = [name for name in target.names if name not in found.columns]
                if missing:
                    raise _unfit(target, f"the table lacks the column {missing[0]}")
            found = found_tables.find(self.connection, target.schema, target.table)
        assert found is not None
        return found

    def _alter(self, target: statements.TargetTable, statement: str, columns: Sequence[str]) -> None:
        try:
            self.connection.do(statement)
        except pymysql.Error as exc:
            error = of_alter(exc, target.plain_name, ",".join(columns))
            if error is None:
                raise
            raise error from exc
        log.info("made or altered table=%s columns=%d", target.plain_name, len(target.columns))

    def _make_database(self, name: str) -> None:
        query = "select 1 from information_schema.schemata where schema_name = %s"
        if self.connection.one(query, (name,)) is None:
            self.connection.do(f"create database if not exists {statements.quote(name)}")

    @contextlib.contextmanager
    def _making(self) -> Iterator[None]:
        found = self.connection.one(_LOCK)
        if not found or not found[0]:
            raise CdcError(TARGET_LOCKED, "somebody else makes tables for long")
        try:
            yield
        finally:
            with contextlib.suppress(Exception):
                self.connection.do(_UNLOCK)

    # Rows

    def write(self, rows: RowsStep) -> None:
        table = self._tables[rows.shape.table, id(rows.shape)]
        if rows.deleted:
            self._delete(table, rows.deleted)
        mode = self._rules.insert_mode
        upserts = mode == "upsert" and bool(rows.shape.key)
        for lacking, found in rows.written.items():
            if not found:
                continue
            # ON DUPLICATE KEY would change the row that has the value of any other unique index.
            if mode == "update" or lacking or (upserts and table.others):
                self._update(table, lacking, found, adds=upserts)
            else:
                self._insert(table, lacking, found, upserts=upserts)

    def empty(self, table: TableName, column: str, position: bytes | None) -> None:
        schema = table.schema or self._address.schema
        found = found_tables.find(self.connection, schema, table.table)
        if found is None:
            return
        own = statements.quote(column)
        some = (
            f" where {own} is null or {own} <= {statements.binary(position)}"
            if position and column in found.columns
            else ""
        )
        # TRUNCATE would end the transaction.
        self.connection.do(f"delete from {statements.quote(schema)}.{statements.quote(table.table)}{some}")

    def _delete(self, table: _Table, keys: Sequence[Row]) -> None:
        head = f"delete from {table.name} where ({statements.listed(table.shape.key)}) in ("
        with values_made():
            texts = rows_text(keys, table.key_literals)
        for rows in _pieces(texts):
            self._run(f"{head}{rows})")

    def _insert(self, table: _Table, lacking: Places, rows: Sequence[Row], *, upserts: bool) -> None:
        """Adds rows; `upserts`: or changes those whose key is there."""
        shape = table.shape
        names = [name for at, name in enumerate(shape.names) if at not in lacking]
        literals = [literal for at, literal in enumerate(table.literals) if at not in lacking]
        kept = [tuple(value for at, value in enumerate(row) if at not in lacking) for row in rows] if lacking else rows
        sets = [name for name in names if name not in shape.key]
        # A row that sets a column of its key to itself stays as it is.
        set_text = ", ".join(f"{statements.quote(n)} = values({statements.quote(n)})" for n in sets or shape.key)
        tail = f" on duplicate key update {set_text}" if upserts else ""
        head = f"insert into {table.name} ({statements.listed(names)}) values "
        with values_made():
            texts = rows_text(kept, literals)
        for text in _pieces(texts):
            self._run(f"{head}{text}{tail}")

    def _update(self, table: _Table, lacking: Places, rows: Sequence[Row], *, adds: bool) -> None:
        """Changes the rows that are there, one by one; `adds` the others."""
        shape, quote = table.shape, statements.quote
        keys = set(shape.key_places)
        for row in rows:
            with values_made():
                made = [literal(value) for literal, value in zip(table.literals, row, strict=True)]
            where = " and ".join(f"{quote(shape.names[at])} = {made[at]}" for at in shape.key_places)
            sets = [
                f"{quote(name)} = {made[at]}"
                for at, name in enumerate(shape.names)
                if at not in lacking and at not in keys
            ]
            if adds and self.connection.one(f"select 1 from {table.name} where {where} for update") is None:
                self._insert(table, lacking, [row], upserts=False)
            elif sets:
                self._run(f"update {table.name} set {', '.join(sets)} where {where}")

    def _run(self, statement: str) -> None:
        packet = self.connection.server.packet
        with values_made():
            # Half a pair of surrogates, which JSON can hold, has no bytes.
            size = len(statement) if statement.isascii() else len(statement.encode())
        if size >= packet:
            # The server would end the connection, which looks like one that it may take later.
            raise CdcError(TARGET_VALUE, f"a row is longer than the server takes (max_allowed_packet={packet})")
        self.connection.do(statement)


def _pieces(rows: Sequence[str]) -> Iterator[str]:
    """Yields rows joined, as many as one statement may hold."""
    piece: list[str] = []
    size = 0
    for row in rows:
        if piece and size + len(row) > _STATEMENT_BYTES:
            yield ",".join(piece)
            piece, size = [], 0
        piece.append(row)
        size += len(row) + 1
    if piece:
        yield ",".join(piece)


def _kind(column: TargetColumn, in_key: bool) -> str:
    made = types.type_of(column, in_key)
    if in_key and made in (types.TEXT, types.BYTES):
        # An index holds no long text; a longer value is refused.
        return _KEY_TEXT if made == types.TEXT else "varbinary(255)"
    return made


def _clauses(target: statements.TargetTable, found: found_tables.FoundTable) -> Mapping[str, str]:
    """Returns the clauses that add and widen columns, by the column. CdcError where no type holds both."""
    there = found.columns
    room = types.ROW_BYTES_MAX - sum(types.row_bytes(column.type) for column in there.values())
    added = types.fitting({name: target.types[name] for name in target.names if name not in there}, (), max(0, room))
    out: dict[str, str] = {}
    for name in target.names:
        column = there.get(name)
        if column is None:
            out[name] = f"add column {statements.quote(name)} {statements.declared(target, added[name])}"
            continue
        needed = types.widened(column.type, target.types[name])
        if needed is None:
            text = f"a column of type {column.type} cannot hold {target.types[name]}"
            raise CdcError(TABLE_UNFIT, text, where={"table": target.plain_name, "column": name})
        if types.normal(needed) != column.type:
            bare = "" if column.nullable else " not null"
            kind = statements.declared(replace(target, types={**target.types, name: needed}), needed)
            out[name] = f"modify column {statements.quote(name)} {kind}{bare}"
    return out


def _unfit(target: statements.TargetTable, text: str) -> CdcError:
    return CdcError(
        TABLE_UNFIT, f"{text}, and schema.evolution lets the sink not alter it", where={"table": target.plain_name}
    )
