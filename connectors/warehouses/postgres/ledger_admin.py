"""The ledger in a PostgreSQL warehouse as a person looks at it, or alters it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.sink import LedgerAccess
from cdcworker.connectors.config.allowed_hosts import guarded
from cdcworker.connectors.sink_errors import LEDGER_BUSY, from_psycopg
from cdcworker.connectors.warehouses.postgres.ledger import PostgresLedger
from cdcworker.connectors.warehouses.sql.ledger_admin import LedgerStatements, SqlLedgerAdmin
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from cdcworker.connectors.warehouses.postgres.client import Connection

CONNECT_TIMEOUT_S: Final = 5
LOCK_TIMEOUT: Final = "set local lock_timeout = '5s'"
STATEMENTS: Final = LedgerStatements(
    partition="""select next_offset, batch, (extract(epoch from at) * 1000)::bigint, applied
        from _cdcworker.ledger where sink = %s and topic = %s and partition = %s""",
    dead_letter="""select code, (extract(epoch from at) * 1000)::bigint from _cdcworker.dead_letter
        where sink = %s and topic = %s and partition = %s and "offset" = %s""",
    epochs="select task_epoch, attempt from _cdcworker.ledger where sink = %s order by topic, partition for update",
    forget="delete from _cdcworker.ledger where sink = %s and topic = %s and partition = %s",
    put="""insert into _cdcworker.ledger as l (sink, topic, partition, next_offset, task_epoch, attempt, at)
        values (%s, %s, %s, %s, %s, %s, clock_timestamp())
        on conflict (sink, topic, partition) do update
        set next_offset = excluded.next_offset, applied = null, source_ts_ms = null, at = excluded.at""",
)


class PostgresLedgerAdmin(SqlLedgerAdmin["Connection"]):
    """The ledger of one sink in PostgreSQL."""

    statements = STATEMENTS

    def __init__(self, conninfo: str, access: LedgerAccess, schema: str = "", column: str = "") -> None:
        super().__init__(access, PostgresLedger(access.connector, 0), schema, column)
        self._conninfo = conninfo

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Connection]:
        import psycopg
        from cdcworker.connectors.warehouses.postgres.client import Connection

        try:
            with Connection.connect(
                guarded(self._conninfo), connect_timeout=CONNECT_TIMEOUT_S, application_name="cdcworker-offsets"
            ) as connection:
                yield connection
        except psycopg.errors.LockNotAvailable as exc:
            raise CdcError(LEDGER_BUSY, "the ledger is locked") from exc
        except psycopg.Error as exc:
            raise from_psycopg(exc) from exc

    @contextlib.contextmanager
    def _alteration(self) -> Iterator[Connection]:
        with self._transaction() as connection:
            self._ledger.create(connection)
            connection.execute(LOCK_TIMEOUT)
            yield connection

    def _positions(
        self, connection: Connection, place: tuple[str, str], key: Mapping[str, Any]
    ) -> list[bytes | None] | None:
        import psycopg
        from psycopg import sql

        tests = sql.SQL(" and ").join(sql.SQL("{}::text = %s").format(sql.Identifier(name)) for name in key)
        text = sql.SQL("select {} from {} where {}").format(sql.Identifier(self._column), sql.Identifier(*place), tests)
        try:
            with connection.transaction():
                rows = connection.execute(text, [str(value) for value in key.values()]).fetchall()
        except psycopg.Error:
            return None
        return [row[0] for row in rows]
