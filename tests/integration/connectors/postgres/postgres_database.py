"""A database of PostgreSQL as tests use it that run over every source database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import psycopg

from tests.contract.polled_task import PolledTask
from tests.contract.source_databases import SourceDatabase, WriteRefused
from tests.unit.connectors.native_records import Registry

from .postgres_reader import Reader, become_role

REFUSALS = (psycopg.errors.LockNotAvailable, psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected)

ALTERED: Mapping[str, tuple[str, ...]] = {
    "add": ("alter table {} add column extra int default 7",),
    "widen": ("alter table {} alter column n type bigint",),
    "narrow": ("alter table {} alter column n type smallint",),
    "retype": ("alter table {} alter column n type text using n::text",),
    "rename": ("alter table {} rename column v to w",),
    "drop": ("alter table {} drop column v",),
    "key": ("alter table {0} drop constraint {0}_pkey", "alter table {} add primary key (id, n)"),
}


class PostgresSession:
    """A connection of somebody else."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, options="-c lock_timeout=5ms")
        self._patient = psycopg.connect(dsn, autocommit=True)
        self.commit, self.rollback = self._connection.commit, self._connection.rollback

    def close(self) -> None:
        self._connection.close()
        self._patient.close()

    def patient(self, statement: str) -> None:
        self._patient.execute(statement)

    def execute(self, statement: str) -> None:
        try:
            self._connection.execute(statement)
        except REFUSALS as error:
            raise WriteRefused from error


class PostgresDatabase(SourceDatabase):
    """`natively`: rows are written as records, by the native decoder; `role`: a task logs in with a source's rights and no others."""

    code: ClassVar[str] = "postgres"

    def __init__(self, server: Any, name: str, *, natively: bool = False, role: bool = False) -> None:
        self._server, self._name, self._natively, self._role = server, name, natively, role
        self._db = psycopg.connect(server.dsn(name), autocommit=True)

    def close(self) -> None:
        self._db.close()

    def run(self, *statements: str) -> None:
        for statement in statements:
            self._db.execute(statement)

    def together(self, *statements: str) -> None:
        with self._db.transaction():
            self.run(*statements)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self._db.execute(query).fetchall()

    def session(self) -> PostgresSession:
        return PostgresSession(self._server.dsn(self._name))

    def task(self, **config: str) -> Reader:
        made = Reader(self._server, self._name, **config)
        made.registry = Registry() if self._natively else None
        if self._role:
            made.before_first_start = lambda one: become_role(one, self._server.dsn(self._name))
        return made

    def path(self, table: str) -> tuple[str, ...]:
        return ("public", table)

    def catch_up(self, one: PolledTask, *, loaded: bool = True) -> None:
        assert isinstance(one, Reader)
        (one.catch_up if loaded else one.catch_up_stream)(self._db)

    def altered(self, kind: str, table: str) -> list[str]:
        return [statement.format(table) for statement in ALTERED[kind]]

    def count_anew(self, *tables: str) -> None:
        self.run(*(f"analyze {table}" for table in tables))

    def reader_of(self, tables: Sequence[str], **config: str) -> Reader:
        self.run(f"create publication p for table {', '.join(tables)}")
        made = self.task(**config, publication_name="p", publication_autocreate_mode="disabled")
        made.before_first_start = lambda one: become_role(one, self._server.dsn(self._name))
        return made

    def show(self, one: PolledTask, table: str) -> None:
        self.run(f"revoke all on {table} from {one.config['database.user']}", f"alter publication p add table {table}")

    def open(self, one: PolledTask, *tables: str) -> None:
        self.run(f"grant select on {', '.join(tables)} to {one.config['database.user']}")

    def upsert(self, row: str, changed: str) -> str:
        return f"insert into t{row} on conflict (id) do update set {changed} = excluded.{changed}"

    def kept_apart(self, table: str, column: str) -> tuple[str, ...]:
        return (f"alter table {table} alter column {column} set storage external",)
