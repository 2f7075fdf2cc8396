"""The ledger in a MySQL warehouse as a person looks at it, or alters it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.sink import LedgerAccess
from cdcworker.connectors.mysql_client.error_numbers import number_of
from cdcworker.connectors.mysql_client.login import Login
from cdcworker.connectors.sink_errors import LEDGER_BUSY
from cdcworker.connectors.warehouses.mysql import statements
from cdcworker.connectors.warehouses.mysql.connection import opened, transaction
from cdcworker.connectors.warehouses.mysql.errors import from_pymysql
from cdcworker.connectors.warehouses.mysql.ledger import MySqlLedger
from cdcworker.connectors.warehouses.sql.ledger_admin import LedgerStatements, SqlLedgerAdmin
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from cdcworker.connectors.mysql_client.client import MySqlConnection

LOCK_TIMEOUT: Final = "set session innodb_lock_wait_timeout = 5"
_LOCKED: Final = (1205, 3572)
_MS: Final = "cast(timestampdiff(microsecond, '1970-01-01', at) / 1000 as signed)"
STATEMENTS: Final = LedgerStatements(
    partition=f"""select next_offset, batch, {_MS}, applied from _cdcworker.ledger
        where sink = %s and topic = %s and `partition` = %s""",
    dead_letter=f"""select code, {_MS} from _cdcworker.dead_letter
        where sink = %s and topic = %s and `partition` = %s and `offset` = %s""",
    epochs="select task_epoch, attempt from _cdcworker.ledger where sink = %s order by topic, `partition` for update",
    forget="delete from _cdcworker.ledger where sink = %s and topic = %s and `partition` = %s",
    put="""insert into _cdcworker.ledger (sink, topic, `partition`, next_offset, task_epoch, attempt, at)
        values (%s, %s, %s, %s, %s, %s, now(6)) on duplicate key update
        next_offset = values(next_offset), applied = null, source_ts_ms = null, at = values(at)""",
)


class MySqlLedgerAdmin(SqlLedgerAdmin["MySqlConnection"]):
    """The ledger of one sink in MySQL."""

    statements = STATEMENTS

    def __init__(self, login: Login, access: LedgerAccess, schema: str = "", column: str = "") -> None:
        super().__init__(access, MySqlLedger(access.connector, 0), schema, column)
        self._login = login

    @contextlib.contextmanager
    def _session(self) -> Iterator[MySqlConnection]:
        import pymysql

        with contextlib.closing(opened(self._login, "cdcworker-offsets")) as connection:
            try:
                connection.do(LOCK_TIMEOUT)
                yield connection
            except pymysql.Error as exc:
                if number_of(exc) in _LOCKED:
                    raise CdcError(LEDGER_BUSY, "the ledger is locked") from exc
                raise from_pymysql(exc) from exc

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[MySqlConnection]:
        with self._session() as connection, transaction(connection):
            yield connection

    @contextlib.contextmanager
    def _alteration(self) -> Iterator[MySqlConnection]:
        with self._session() as connection:
            self._ledger.create(connection)
            with transaction(connection):
                yield connection

    def _positions(
        self, connection: MySqlConnection, place: tuple[str, str], key: Mapping[str, Any]
    ) -> list[bytes | None] | None:
        import pymysql

        tests = " and ".join(
            f"cast({statements.quote(name)} as char) = {statements.literal(str(value))}" for name, value in key.items()
        )
        table = ".".join(statements.quote(name) for name in place)
        try:
            row = connection.one(f"select {statements.quote(self._column)} from {table} where {tests}")
        except pymysql.Error:
            return None
        return [] if row is None else [row[0]]
