"""Connections to a MySQL or MariaDB warehouse: the session's settings, and what kind of server it is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cdcworker.connectors.mysql_client.login import Login, LoginRefusals, connected, version_of
from cdcworker.connectors.sink_errors import TARGET_RIGHTS, TARGET_UNREACHABLE, TARGET_VERSION
from cdcworker.connectors.warehouses.mysql.errors import UNFIT, from_pymysql
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from cdcworker.connectors.mysql_client.client import MySqlConnection

MYSQL_MIN: Final = (8, 0, 19)
MARIADB_MIN: Final = (10, 6)
MODE: Final = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO,ERROR_FOR_DIVISION_BY_ZERO"
SESSION: Final = (
    "set session transaction isolation level read committed",
    # The server ends a transaction that nobody goes on with, as of a process that was stopped.
    "set session wait_timeout = 600, innodb_lock_wait_timeout = 50, lock_wait_timeout = 60, time_zone = '+00:00'",
    # Whatever the server has for all sessions: a COMMIT begins no other transaction, a SELECT leaves no rows out, and a second row
    # of a key is looked for.
    "set session completion_type = 'NO_CHAIN', sql_select_limit = 18446744073709551615, unique_checks = 1",
)
_FACTS: Final = "select version(), @@global.local_infile, @@lower_case_table_names, @@global.log_bin, @@binlog_format, @@max_allowed_packet"
REFUSALS: Final = LoginRefusals(TARGET_UNREACHABLE, UNFIT, "warehouse.hostname", "warehouse.sslrootcert")
BOOKKEEPING: Final = "_cdcworker"
_BOOKKEEPING: Final = f"select 1 from information_schema.schemata where schema_name = '{BOOKKEEPING}'"


@dataclass(frozen=True, slots=True)
class Server:
    """What a server can do, as it is found when a connection is opened."""

    is_mariadb: bool
    loads: bool
    """Whether it takes rows by LOAD DATA LOCAL."""
    folds: bool
    """Whether it does not tell upper from lower case in names of tables."""
    packet: int
    """The longest statement, in bytes."""

    @property
    def collation(self) -> str:
        """The collation that tells all texts apart, those with blanks at their ends too."""
        return "utf8mb4_nopad_bin" if self.is_mariadb else "utf8mb4_0900_bin"


def opened(login: Login, program: str = "cdcworker-sink") -> MySqlConnection:
    """Returns a connection with the session's settings. CdcError where the server may not be reached, or is none for it."""
    import pymysql

    try:
        connection = connected(login, program, REFUSALS, sql_mode=MODE)
        try:
            for statement in SESSION:
                connection.do(statement)
            connection.server = _server(connection)
            if connection.one(_BOOKKEEPING):
                enter(connection)
        except BaseException:
            connection.close()
            raise
    except pymysql.Error as exc:
        raise from_pymysql(exc) from exc
    return connection


def enter(connection: MySqlConnection) -> None:
    """Makes the bookkeeping's database the session's, without which a DELETE of some rows of a join has none."""
    connection.select_db(BOOKKEEPING)


def _server(connection: MySqlConnection) -> Server:
    """CdcError where the server is too old, or its log could not hold what the sink does."""
    found = connection.one(_FACTS)
    assert found is not None
    version, loads, folds, logs, form, packet = found
    is_mariadb = "mariadb" in str(version).lower()
    least = MARIADB_MIN if is_mariadb else MYSQL_MIN
    if version_of(str(version)) < least:
        raise CdcError(TARGET_VERSION, "the warehouse's server is older than MySQL 8.0.19, or than MariaDB 10.6")
    if logs and str(form).upper() == "STATEMENT":
        raise CdcError(UNFIT, "binlog_format is STATEMENT, with which rows cannot be written in isolation")
    return Server(is_mariadb, bool(loads), bool(folds), int(packet))


@contextlib.contextmanager
def transaction(connection: MySqlConnection) -> Iterator[MySqlConnection]:
    """One transaction, undone where something is raised."""
    connection.begin()
    try:
        yield connection
    except BaseException:
        with contextlib.suppress(Exception):
            connection.rollback()
        raise
    connection.commit()


@contextlib.contextmanager
def savepoint(connection: MySqlConnection, name: str) -> Iterator[None]:
    """A part of a transaction that is undone alone."""
    connection.do(f"savepoint {name}")
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            connection.do(f"rollback to savepoint {name}")
        raise
    connection.do(f"release savepoint {name}")


def probe(login: Login) -> None:
    """CdcError when the warehouse cannot be used: login, version, settings, rights. Changes nothing."""
    import pymysql

    connection = opened(login)
    try:
        grants = [str(row[0]) for row in connection.ask("show grants")]
    except pymysql.Error as exc:
        raise from_pymysql(exc) from exc
    finally:
        connection.close()
    if not _may_create(grants):
        raise CdcError(TARGET_RIGHTS, f"the warehouse user may not create tables in the database {BOOKKEEPING}")


def _may_create(grants: Sequence[str]) -> bool:
    """Whether a line of SHOW GRANTS gives the right to create. What a role gives is not in it, and is believed."""
    for line in grants:
        rights, _, rest = line.partition(" ON ")
        if not rest:
            return True
        words = [word.strip() for word in rights.removeprefix("GRANT ").split(",")]
        place = rest.partition(" TO ")[0].replace("\\", "").strip("`")
        if ("CREATE" in words or "ALL PRIVILEGES" in words) and place.startswith(("*.*", BOOKKEEPING, "%")):
            return True
    return False
