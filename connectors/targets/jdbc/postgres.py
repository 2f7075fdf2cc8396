"""PostgreSQL as a target: rows go as arrays, one for each column, in one statement."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
from cdcworker.connectors.jdbc_url import Address, conninfo
from cdcworker.connectors.sink_errors import TARGET_RIGHTS, TARGET_UNREACHABLE, TARGET_VALUE, from_psycopg
from cdcworker.connectors.targets.jdbc.changes import SHAPES_MAX, Places, RowsStep
from cdcworker.connectors.targets.jdbc.errors import TABLE_UNFIT, values_made
from cdcworker.connectors.targets.jdbc.ledger import SCHEMA, LedgerSql
from cdcworker.connectors.targets.jdbc.naming import TableName
from cdcworker.connectors.targets.jdbc.postgres_values import Column, column_text
from cdcworker.connectors.targets.jdbc.rules import WriteRules
from cdcworker.connectors.targets.jdbc.shapes import Row, RowShape
from cdcworker.connectors.warehouses.postgres import connection as warehouse_connection
from cdcworker.connectors.warehouses.postgres import found_tables, statements, type_conflicts
from cdcworker.connectors.warehouses.source_types import parse_type
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from cdcworker.connectors.warehouses.postgres.client import Connection

log = logging.getLogger(__name__)

LEDGER: Final = LedgerSql(
    (
        f"""create table if not exists {SCHEMA}.record_ledger (connector text, topic_id text, partition_number int, topic text not null,
            next_offset bigint not null, task_epoch bigint not null, attempt bigint not null,
            primary key (connector, topic_id, partition_number)) with (fillfactor = 50)""",
        f"""create table if not exists {SCHEMA}.record_refused (connector text, topic_id text, partition_number int, record_offset bigint,
            primary key (connector, topic_id, partition_number, record_offset))""",
        f"""create table if not exists {SCHEMA}.record_floor (connector text, table_name text, position bytea,
            primary key (connector, table_name))""",
    ),
    "insert",
    " on conflict do nothing",
    " for share",
)
_NEWEST: Final = f"select to_regclass('{SCHEMA}.record_floor') is not null"
"""Where it is, all of them are."""
_LOCK: Final = 0x636463776F726C  # one maker of tables at a time
SESSION: Final = (
    # Kafka's offsets move on behind a commit, so it has to be on the disk.
    "set synchronous_commit = on",
    # A transaction's statements follow each other at once. One that stands still is of a process that was stopped: it must not
    # keep the next owner waiting.
    "set idle_in_transaction_session_timeout = '5s'",
)
_STALE: Final = ("42P01", "42703", "42P10", "0A000", "42804")
"""A table is other than it was when it was looked at."""
_MAY_CREATE: Final = f"""select case when to_regnamespace('{SCHEMA}') is null
    then has_database_privilege(current_database(), 'CREATE') else has_schema_privilege('{SCHEMA}', 'USAGE, CREATE') end"""
_UNIQUE: Final = """select exists (select from pg_index i where i.indrelid = to_regclass(%s)
      and i.indisunique and i.indisvalid and i.indimmediate and i.indexprs is null and i.indpred is null
      and (select array_agg(a.attname::text order by a.attname::text) from pg_attribute a
        where a.attrelid = i.indrelid and a.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1])) = %s::text[])"""
"""ON CONFLICT asks for an index of just its columns: one of some of them does not do."""
_NAME_BYTES_MAX: Final = 63
_TYPE_NAMES: Final = {"character": "bpchar", "bit": 'pg_catalog."bit"'}
"""Types whose name alone means a length of one."""


@dataclass(frozen=True, slots=True)
class _Table:
    """A table that fits a shape, and what writes into it."""

    shape: RowShape
    name: str
    types: Mapping[str, str]
    texts: tuple[Column, ...]
    key_texts: tuple[Column, ...]
    statements: dict[tuple[str, Places], str]


class PostgresDatabase:
    """One connection to PostgreSQL."""

    ledger_sql = LEDGER
    failures: tuple[type[Exception], ...] = (psycopg.Error,)

    def __init__(self, address: Address, login: tuple[str, str], rules: WriteRules) -> None:
        """`login`: user and password."""
        self._address = address
        self._login = login
        self._rules = rules
        self._connection: Connection | None = None
        self._tables: dict[tuple[TableName, int], _Table] = {}

    # Connection

    @property
    def connection(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self.close()
            made = warehouse_connection.opened(warehouse_connection.judged(conninfo(self._address, *self._login)))
            for statement in SESSION:
                made.execute(statement)
            self._connection = made
        return self._connection

    @property
    def is_open(self) -> bool:
        return self._connection is not None and not self._connection.closed

    def close(self) -> None:
        made, self._connection = self._connection, None
        if made is not None:
            made.close()
        self.forget()

    def cancel(self) -> None:
        made = self._connection
        if made is not None:
            made.cancel_safe(timeout=5.0)

    def forget(self) -> None:
        self._tables.clear()

    def explained(self, failure: Exception) -> CdcError:
        error = from_psycopg(failure)
        state = getattr(failure, "sqlstate", None) or ""
        if state in _STALE:
            return CdcError(TARGET_UNREACHABLE, f"a table has changed (SQLSTATE {state})", where=error.where)
        if state == "25P03":
            text = f"the server has ended a transaction that stood still (SQLSTATE {state})"
            return CdcError(TARGET_UNREACHABLE, text)
        if state == "21000":
            text = "two records of a batch have keys that the table takes for one (SQLSTATE 21000)"
            return CdcError(TARGET_VALUE, text, where=error.where)
        return error

    def refresh(self) -> None:
        # The server ends no session that is idle outside of a transaction.
        if len(self._tables) > SHAPES_MAX:
            self.forget()

    def transaction(self) -> AbstractContextManager[Any]:
        return self.connection.transaction()

    def check(self) -> None:
        found = self.connection.one(_MAY_CREATE)
        if not found or not found[0]:
            raise CdcError(TARGET_RIGHTS, f"the user may not create tables in the schema {SCHEMA}, nor create it")

    # Tables

    def prepare_ledger(self, statements: Sequence[str]) -> None:
        connection = self.connection
        found = connection.one(_NEWEST)
        if found and found[0]:
            return
        with self._making():
            self._make_schema(SCHEMA)
            for statement in statements:
                connection.do(statement)

    def prepare(self, shape: RowShape) -> None:
        place = (shape.table, id(shape))
        if place in self._tables:
            return
        target = self._target(shape)
        found = found_tables.find(self.connection, target.schema, target.table)
        if found is None or not set(shape.names) <= found.types.keys() or self._rules.evolves:
            found = self._made(target)
        if self._rules.insert_mode == "upsert" and shape.key and not self._has_index(target):
            text = f"upserts need a primary key or a unique index on {', '.join(shape.key)}"
            raise CdcError(TABLE_UNFIT, text, where={"table": target.plain_name})
        by_name = dict(zip(shape.names, shape.columns, strict=True))
        self._tables[place] = _Table(
            shape,
            target.name,
            {name: _base_type(found.types[name]) for name in shape.names},
            tuple(map(column_text, shape.columns)),
            tuple(column_text(by_name[name]) for name in shape.key),
            {},
        )

    def _target(self, shape: RowShape) -> statements.TargetTable:
        schema, table = self._place(shape.table)
        _check_names(f"{schema}.{table}", shape.names)
        if schema == SCHEMA or schema.startswith("pg_") or schema == "information_schema":
            raise CdcError(
                TABLE_UNFIT, "the schema is the server's or the sink's own", where={"table": f"{schema}.{table}"}
            )
        return statements.TargetTable(schema, table, {}, shape.key, shape.columns, position="")

    def _place(self, name: TableName) -> TableName:
        """Returns a table's schema and name as the server has them."""
        fold = str.lower if self._rules.folds else str
        found = TableName(fold(name.schema) or self._address.schema, fold(name.table))
        _check_names(".".join(found), found)
        return found

    def _has_index(self, target: statements.TargetTable) -> bool:
        found = self.connection.one(_UNIQUE, (target.name, sorted(target.key)))
        return bool(found and found[0])

    def _made(self, target: statements.TargetTable) -> found_tables.FoundTable:
        """Returns the table once it is created, or altered, as far as the rules let it be."""
        connection = self.connection
        with self._making():
            found = found_tables.find(connection, target.schema, target.table)
            if found is None:
                if not self._rules.creates:
                    raise _unfit(target, "the table is not there")
                self._make_schema(target.schema)
                connection.do(statements.create_table(target))
                log.info("created table=%s columns=%d", target.plain_name, len(target.columns))
            elif self._rules.evolves:
                clauses, types = found_tables.column_clauses(target, found.types, lambda _: "", lambda _: None)
                if clauses:
                    with type_conflicts.altering(
                        target, [name for name in types if types[name] != found.types.get(name)]
                    ):
                        connection.do(f"alter table {target.name} {', '.join(clauses)}")
                    log.info("altered table=%s changes=%d", target.plain_name, len(clauses))
            else:
                missing = [name for name in target.names if name not in found.types]
                if missing:
                    raise _unfit(target, f"the table lacks the column {missing[0]}")
            found = found_tables.find(connection, target.schema, target.table)
        assert found is not None
        return found

    def _make_schema(self, name: str) -> None:
        found = self.connection.one("select to_regnamespace(%s)", (statements.quote(name),))
        if not found or not found[0]:
            self.connection.do(f"create schema if not exists {statements.quote(name)}")

    @contextmanager
    def _making(self) -> Iterator[None]:
        with self.connection.transaction():
            self.connection.ask("select pg_advisory_xact_lock(%s)", (_LOCK,))
            yield

    # Rows

    def write(self, rows: RowsStep) -> None:
        table = self._tables[rows.shape.table, id(rows.shape)]
        if rows.deleted:
            self._run(table, "delete", frozenset(), rows.deleted)
        mode = self._rules.insert_mode
        for lacking, found in rows.written.items():
            if not found:
                continue
            if mode == "update" or lacking:
                changed = self._run(table, "update", lacking, found)
                if mode == "upsert" and changed < len(found):
                    self._run(table, "add", lacking, found)
            else:
                self._run(table, mode if rows.shape.key else "insert", lacking, found)

    def empty(self, table: TableName, column: str, position: bytes | None) -> None:
        place = self._place(table)
        name = ".".join(map(statements.quote, place))
        found = found_tables.find(self.connection, *place)
        if found is None:
            return
        if position is None or column not in found.types:
            self.connection.do(f"truncate table {name}")
        else:
            own = statements.quote(column)
            self.connection.do(f"delete from {name} where {own} is null or {own} <= {statements.binary(position)}")

    def _run(self, table: _Table, what: str, lacking: Places, rows: Sequence[Row]) -> int:
        statement = table.statements.get((what, lacking))
        if statement is None:
            statement = table.statements[what, lacking] = _statement(table, what, lacking)
        texts = table.key_texts if what == "delete" else table.texts
        columns = zip(texts, zip(*rows, strict=True), strict=True)
        with values_made():
            arrays = [text(values) for at, (text, values) in enumerate(columns) if at not in lacking]
            # Half a pair of surrogates, which JSON can hold, has no bytes.
            return self.connection.execute(statement, arrays).rowcount


def _statement(table: _Table, what: str, lacking: Places) -> str:
    """Returns a statement with a place for the array of each column."""
    shape, quote = table.shape, _quote
    names = list(shape.key) if what == "delete" else [name for at, name in enumerate(shape.names) if at not in lacking]
    arrays = ", ".join("%s::" + _array_type(table.types[name]) for name in names)
    aliases = [f"c{at}" for at in range(len(names))]
    source = f"unnest({arrays}) as u({', '.join(aliases)})"
    into = table.name.replace("%", "%%")
    values = {name: f"u.{alias}{_cast(table.types[name])}" for name, alias in zip(names, aliases, strict=True)}
    where = " and ".join(f"t.{quote(name)} = {values[name]}" for name in shape.key)
    if what == "delete":
        return f"delete from {into} t using {source} where {where}"
    if what == "update":
        sets = ", ".join(f"{quote(name)} = {values[name]}" for name in names if name not in shape.key)
        return f"update {into} t set {sets or _same(shape)} from {source} where {where}"
    listed = ", ".join(map(quote, names))
    text = f"insert into {into} ({listed}) select {', '.join(values.values())} from {source}"
    return text + _conflict(shape, names, what)


def _quote(name: str) -> str:
    """Quotes a name for a statement with parameters, in which a % stands for one."""
    return statements.quote(name).replace("%", "%%")


def _conflict(shape: RowShape, names: Sequence[str], what: str) -> str:
    if what == "insert":
        return ""
    sets = ", ".join(f"{_quote(n)} = excluded.{_quote(n)}" for n in names if n not in shape.key)
    return f" on conflict ({', '.join(map(_quote, shape.key))}) do {'nothing' if what == 'add' or not sets else f'update set {sets}'}"


def _same(shape: RowShape) -> str:
    """Of a table that is nothing but its key."""
    name = _quote(shape.key[0])
    return f"{name} = t.{name}"


def _base_type(text: str) -> str:
    """Returns a type without its length, which the table's column checks: a cast to it would cut values off."""
    found = parse_type(text)
    if found is None:
        return text
    base = _TYPE_NAMES.get(found.base, found.base)
    return base + ("[]" if found.array else "")


def _array_type(base: str) -> str:
    return "text[]" if base.endswith("[]") else f"{base}[]"


def _cast(base: str) -> str:
    return f"::{base}" if base.endswith("[]") else ""


def _check_names(table: str, names: Sequence[str]) -> None:
    """CdcError for a name that the server cuts off, so that two tables or columns would be one, or that it does not have."""
    for name in names:
        if not 0 < len(name.encode()) <= _NAME_BYTES_MAX or "\0" in name:
            text = f"PostgreSQL has no names of more than {_NAME_BYTES_MAX} bytes, of none, or with a NUL"
            raise CdcError(TABLE_UNFIT, text, where={"table": table, "name": name[:100]})


def _unfit(target: statements.TargetTable, text: str) -> CdcError:
    return CdcError(
        TABLE_UNFIT, f"{text}, and schema.evolution lets the sink not alter it", where={"table": target.plain_name}
    )
