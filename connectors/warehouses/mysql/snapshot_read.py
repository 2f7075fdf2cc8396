"""Rows of one target table with the position that they hold everything through, in one snapshot."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.table_writer import TargetRows
from cdcworker.connectors.warehouses.mysql import found_tables, statements, types
from cdcworker.connectors.warehouses.mysql.errors import from_pymysql

if TYPE_CHECKING:
    import pyarrow as pa
    from cdcworker.connectors.mysql_client.client import MySqlConnection
    from cdcworker.connectors.warehouses.mysql.found_tables import FoundTable

CHUNK_ROWS: Final = 10_000
SNAPSHOT: Final = (
    "set session transaction isolation level repeatable read",
    "start transaction with consistent snapshot, read only",
)


def read(connection: MySqlConnection, sink: str, topic: str, place: tuple[str, str]) -> TargetRows | None:
    """Returns the rows of a table; None where there is none. The connection is closed with them."""
    import pymysql

    try:
        found = found_tables.find(connection, *place)
        if found is None:
            connection.close()
            return None
        for statement in SNAPSHOT:
            connection.do(statement)
        applied = connection.ask(
            "select `partition`, applied from _cdcworker.ledger where sink = %s and topic = %s and applied is not null",
            (sink, topic),
        )
    except BaseException as exc:
        connection.close()
        if isinstance(exc, pymysql.Error):
            raise from_pymysql(exc) from exc
        raise
    positions = {int(partition): bytes(at) for partition, at in applied}
    names = [name for name in found.columns if name != statements.HASH]
    rows = batches(connection, place, found, names)
    return TargetRows(".".join(place), found.key, positions, rows, connection.close)


def batches(
    connection: MySqlConnection, place: tuple[str, str], found: FoundTable, names: list[str]
) -> Iterator[pa.RecordBatch]:
    """Yields the rows as the server sends them, some at a time."""
    import pyarrow as pa
    from pymysql.cursors import SSCursor

    truths = {at for at, name in enumerate(names) if found.columns[name].type == types.BOOLEAN}
    with connection.cursor(SSCursor) as cursor:
        cursor.execute(statements.select(place, names))
        while chunk := cursor.fetchmany(CHUNK_ROWS):
            rows = [
                {name: _value(value, at in truths) for at, (name, value) in enumerate(zip(names, row, strict=True))}
                for row in chunk
            ]
            yield pa.RecordBatch.from_pylist(rows)


def _value(value: Any, truth: bool) -> Any:
    if truth and value is not None:
        return bool(value)
    if isinstance(value, dt.timedelta) and dt.timedelta() <= value < dt.timedelta(days=1):
        return (dt.datetime.min + value).time()
    return value
