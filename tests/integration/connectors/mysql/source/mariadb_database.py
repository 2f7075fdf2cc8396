"""A database of MariaDB as tests use it that run over every source database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, ClassVar

import pymysql
from cdcworker.connectors.mysql.gtid.mariadb import MariaDbPosition
from pymysql.constants import ER

from tests.contract.polled_task import PolledTask
from tests.contract.source_databases import SourceDatabase, WriteRefused
from tests.unit.connectors.native_records import Registry

from ..logged import LoggedServer
from .reading import Reading

REFUSALS = frozenset({ER.LOCK_WAIT_TIMEOUT, ER.LOCK_DEADLOCK, ER.DUP_ENTRY})

POOR = "poor_reader"
ALTERED: Mapping[str, str] = {
    "add": "add column extra int default 7",
    "widen": "modify n bigint not null",
    "narrow": "modify n smallint not null",
    "retype": "modify n varchar(20) not null",
    "rename": "rename column v to w",
    "drop": "drop column v",
    "key": "drop primary key, add primary key (id, n)",
}


class MariaDbSession:
    """A connection of somebody else, who waits for no lock."""

    def __init__(self, server: LoggedServer, database: str) -> None:
        self._connection, self._patient = server.connect(), server.connect()
        self._connection.autocommit(False)
        self._connection.select_db(database)
        self._patient.select_db(database)
        self.commit, self.rollback = self._connection.commit, self._connection.rollback
        self.execute("set session innodb_lock_wait_timeout = 0, lock_wait_timeout = 0")

    def close(self) -> None:
        self._connection.close()
        self._patient.close()

    def patient(self, statement: str) -> None:
        with self._patient.cursor() as cursor:
            cursor.execute(statement)

    def execute(self, statement: str) -> None:
        with self._connection.cursor() as cursor:
            try:
                cursor.execute(statement)
            except pymysql.MySQLError as error:
                if error.args[0] not in REFUSALS:
                    raise
                raise WriteRefused from error


class MariaDbDatabase(SourceDatabase):
    """The database `shop` of a server. `row_image`: what sessions of others log of rows; `natively`: tasks write rows as records."""

    code: ClassVar[str] = "mysql"
    knows_renames: ClassVar[bool] = False
    alters_commit: ClassVar[bool] = True

    def __init__(self, server: LoggedServer, row_image: str = "FULL", *, natively: bool = False) -> None:
        self._server, self._image, self._natively = server, row_image, natively

    def run(self, *statements: str) -> None:
        with closing(self._server.connect()) as connection, connection.cursor() as cursor:
            for statement in ("use shop", *statements):
                cursor.execute(statement)

    def together(self, *statements: str) -> None:
        self.run("begin", *statements, "commit")

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return list(self._server.ask("use shop", query))

    def session(self) -> MariaDbSession:
        made = MariaDbSession(self._server, "shop")
        made.execute(f"set session binlog_row_image = {self._image}")
        return made

    def task(self, **config: str) -> Reading:
        made = Reading(self._server, **{name.replace("_", "."): value for name, value in config.items()})
        made.registry = Registry() if self._natively else None
        return made

    def path(self, table: str) -> tuple[str, ...]:
        return ("shop", table)

    def catch_up(self, one: PolledTask, *, loaded: bool = True) -> None:
        end = self._server.position()

        def is_there() -> bool:
            return one.position is not None and MariaDbPosition.parse(one.position["gtids"]).contains(end)

        one.until(lambda: is_there() and (not loaded or one.loaded()))

    def altered(self, kind: str, table: str) -> list[str]:
        return [f"alter table {table} {ALTERED[kind]}"]

    def count_anew(self, *tables: str) -> None:
        self.run(*(f"analyze table {table}" for table in tables))

    def reader_of(self, tables: Sequence[str], **config: str) -> Reading:
        self.run(
            f"create or replace user {POOR} identified by '{POOR}'",
            f"grant replication slave, replication client on *.* to {POOR}",
            *(f"grant select on shop.{table} to {POOR}" for table in tables),
        )
        return self.task(**config, database_user=POOR, database_password=POOR)

    def show(self, one: PolledTask, table: str) -> None:
        self.run(f"grant insert on shop.{table} to {POOR}")

    def open(self, one: PolledTask, *tables: str) -> None:
        self.run(*(f"grant select on shop.{table} to {POOR}" for table in tables))

    def upsert(self, row: str, changed: str) -> str:
        return f"insert into t{row} on duplicate key update {changed} = values({changed})"
