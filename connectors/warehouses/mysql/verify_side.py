"""A MySQL warehouse as the target of a comparison: one snapshot is read, and the texts of its rows are made here."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.table_batch import DELETED, IS_CURRENT, POSITION
from cdcworker.connectors.mysql_client.login import Login
from cdcworker.connectors.verify.canonical_text import VerifiedColumn
from cdcworker.connectors.verify.databases import (
    LedgerGoal,
    TableFailed,
    VerifyLimits,
    begin_at_goal,
)
from cdcworker.connectors.verify.lake_texts import CLIENT
from cdcworker.connectors.verify.plan import ComparisonPlan, SideTable
from cdcworker.connectors.warehouses.lake.verify_side import RowsHere
from cdcworker.connectors.warehouses.mysql import found_tables, statements, types
from cdcworker.connectors.warehouses.mysql.connection import opened
from cdcworker.connectors.warehouses.mysql.errors import from_pymysql
from cdcworker.connectors.warehouses.mysql.ledger import MySqlLedger
from cdcworker.connectors.warehouses.mysql.snapshot_read import CHUNK_ROWS, SNAPSHOT
from cdcworker.connectors.warehouses.sql.catalog import POSITION_ID
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    import pyarrow as pa
    from cdcworker.connectors.mysql_client.client import MySqlConnection
    from cdcworker.connectors.warehouses.mysql.found_tables import FoundTable

APPLICATION: Final = "cdcworker-verify"
_LAKE_TYPE: Final[Mapping[str, str]] = {
    types.BOOLEAN: "boolean",
    **dict.fromkeys(("smallint", "mediumint", "int"), "int"),
    "bigint": "bigint",
    "double": "double",
    "date": "day",
}


class MySqlTarget(RowsHere):
    """`sink` is the name under which the ledger knows it; `position` the name of the column of positions."""

    def __init__(self, login: Login, sink: str, position: str = POSITION) -> None:
        self._connection = opened(login, APPLICATION)
        self._ledger = MySqlLedger(sink, 0)
        self._position = position
        self._found: dict[tuple[str, str], FoundTable] = {}

    def prepare(self, limits: VerifyLimits) -> None:
        """Sets how long a statement may take, where the server knows a limit."""
        seconds = limits.statement_timeout_ms / 1000
        with self._translated() as connection:
            if connection.server.is_mariadb:
                connection.do("set session max_statement_time = %s", (seconds,))
            else:
                connection.do("set session max_execution_time = %s", (limits.statement_timeout_ms,))

    def table(self, schema: str, name: str) -> SideTable | None:
        with self._translated() as connection:
            try:
                found = found_tables.find(connection, schema, name)
            except CdcError:
                # A view has its name: the sink says so.
                return None
            if found is None:
                return None
            place = f"{statements.quote(schema)}.{statements.quote(name)}"
            some = connection.one(f"select 1 from {place} limit 1")
            held = self._positions(connection)
        self._found[schema, name] = found
        columns = tuple(
            VerifiedColumn(column.name, _type(connection, column), CLIENT, declared=column.type)
            for column in found.columns.values()
        )
        position = next((at for at in (self._position, *held, POSITION) if at in found.columns), "")
        return SideTable(schema, name, columns, found.key, 1 if some else 0, position=position)

    def _positions(self, connection: MySqlConnection) -> list[str]:
        if not self._ledger.is_there(connection):
            return []
        rows = connection.ask(
            "select distinct name from _cdcworker.columns where sink = %s and colid = %s",
            (self._ledger.sink, POSITION_ID),
        )
        return [str(name) for (name,) in rows]

    def ledger(self) -> Mapping[tuple[str, int], int]:
        with self._translated() as connection:
            return self._ledger.read(connection) if self._ledger.is_there(connection) else {}

    def begin(self, goal: LedgerGoal, deadline: float) -> None:
        begin_at_goal(self, goal, deadline, self._ledger.sink)

    def begin_snapshot(self) -> None:
        """Begins a transaction that shows the database at one moment; one that runs already ends."""
        self.end()
        with self._translated() as connection:
            for statement in SNAPSHOT:
                connection.do(statement)

    def end(self) -> None:
        with self._translated() as connection:
            connection.rollback()

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._connection.close()

    # -- reading ------------------------------------------------------------------------------------------------------

    def _batches(self, plan: ComparisonPlan) -> Iterator[pa.RecordBatch]:
        """Yields the rows that are there; those that a soft delete left are not, nor are versions that have ended."""
        import pyarrow as pa
        from pymysql.cursors import SSCursor

        assert plan.target is not None
        found = self._found[plan.target.schema, plan.target.name]
        position = [plan.target.position] if plan.target.position else []
        names = [*dict.fromkeys([*(item.target.name for item in plan.columns), *position])]
        table, hides = (plan.target.schema, plan.target.name), DELETED if DELETED in found.columns else ""
        shows = IS_CURRENT if found.versions else ""
        with self._of_table() as connection, connection.cursor(SSCursor) as cursor:
            cursor.execute(statements.select(table, names, hides, shows))
            while chunk := cursor.fetchmany(CHUNK_ROWS):
                columns = zip(*chunk, strict=True)
                # Arrow has no type for what differs from row to row, as decimals do.
                made = [pa.array([_shown(value) for value in column]) for column in columns]
                yield pa.record_batch(made, names)

    @contextlib.contextmanager
    def _of_table(self) -> Iterator[MySqlConnection]:
        import pymysql

        try:
            yield self._connection
        except pymysql.Error as exc:
            if self._connection.open:
                # The kind of the error only: a message may hold a row's value.
                raise TableFailed(f"not readable in the warehouse ({type(exc).__name__})") from None
            raise from_pymysql(exc) from exc

    @contextlib.contextmanager
    def _translated(self) -> Iterator[MySqlConnection]:
        import pymysql

        try:
            yield self._connection
        except pymysql.Error as exc:
            raise from_pymysql(exc) from exc


def _type(connection: MySqlConnection, column: found_tables.FoundColumn) -> str:
    """Returns the name that the texts of a lake have for a type."""
    found = types.parsed(column.type)
    if found is None:
        return column.type
    if types.is_bytes(column.type):
        return "binary"
    if found.base == types.JSON:
        # MySQL writes its numbers anew; MariaDB keeps JSON as the text that it was.
        return "json"
    if found.base in ("time", "char", "varchar") or types.is_text(column.type):
        return "string"
    if found.base in ("datetime", "timestamp"):
        return "timestamp_ntz"
    return _LAKE_TYPE.get(column.type, column.type)


def _shown(value: Any) -> Any:
    if isinstance(value, Decimal):
        return str(value)
    return _clock(value) if isinstance(value, dt.timedelta) else value


def _clock(value: dt.timedelta) -> str:
    micros = value // dt.timedelta(microseconds=1)
    seconds = micros // 1_000_000
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{micros % 1_000_000:06d}"
