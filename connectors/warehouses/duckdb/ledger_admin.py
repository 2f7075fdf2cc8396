"""The ledger in a DuckDB warehouse as a person looks at it, or alters it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from cdcworker.connectors.api.sink import LedgerAccess
from cdcworker.connectors.warehouses.duckdb import statements
from cdcworker.connectors.warehouses.duckdb.connection import Connection, session, transaction
from cdcworker.connectors.warehouses.duckdb.ledger import DuckDbLedger
from cdcworker.connectors.warehouses.sql.ledger_admin import LedgerStatements, SqlLedgerAdmin

STATEMENTS: Final = LedgerStatements(
    partition="""select next_offset, batch, epoch_ms(written_at), applied from _cdcworker.ledger
        where sink = %s and topic = %s and partition = %s""",
    dead_letter="""select code, epoch_ms(written_at) from _cdcworker.dead_letter
        where sink = %s and topic = %s and partition = %s and "offset" = %s""",
    epochs="select task_epoch, attempt from _cdcworker.ledger where sink = %s",
    forget="delete from _cdcworker.ledger where sink = %s and topic = %s and partition = %s",
    put="""insert into _cdcworker.ledger (sink, topic, partition, next_offset, task_epoch, attempt, written_at)
        values (%s, %s, %s, %s, %s, %s, get_current_timestamp()) on conflict (sink, topic, partition) do update
        set next_offset = excluded.next_offset, applied = null, source_ts_ms = null, written_at = excluded.written_at""",
    # Nothing is locked: there is one writer.
    fences="select task_epoch, attempt from _cdcworker.fence where sink = %s",
)


class DuckDbLedgerAdmin(SqlLedgerAdmin[Connection]):
    """The ledger of one sink in DuckDB."""

    statements = STATEMENTS

    def __init__(self, path: str, access: LedgerAccess, schema: str = "", column: str = "") -> None:
        super().__init__(access, DuckDbLedger(access.connector, 0), schema, column)
        self._path = path

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with session(self._path) as connection, transaction(connection):
            yield connection

    @contextlib.contextmanager
    def _alteration(self) -> Iterator[Connection]:
        with session(self._path, creates=True) as connection, transaction(connection):
            self._ledger.create(connection)
            yield connection

    def _positions(
        self, connection: Connection, place: tuple[str, str], key: Mapping[str, Any]
    ) -> list[bytes | None] | None:
        import duckdb

        tests = " and ".join(
            f"cast({statements.quote(name)} as varchar) = {statements.literal(str(value))}"
            for name, value in key.items()
        )
        table = ".".join(statements.quote(name) for name in place)
        try:
            rows = connection.ask(f"select {statements.quote(self._column)} from {table} where {tests}")
        except duckdb.Error:
            return None
        return [row[0] for row in rows]
