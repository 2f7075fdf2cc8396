"""Rows of one table with the position that they hold everything through, in one snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from cdcworker.connectors.api.table_writer import TargetRows
from cdcworker.connectors.warehouses.duckdb import found_tables, statements
from cdcworker.connectors.warehouses.duckdb.connection import Connection, opened
from cdcworker.connectors.warehouses.duckdb.errors import from_duckdb
from cdcworker.connectors.warehouses.duckdb.ledger import DuckDbLedger

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_ROWS: Final = 10_000


def read(path: str, ledger: DuckDbLedger, topic: str, place: tuple[str, str]) -> TargetRows | None:
    """Returns the rows of a table; None where there is none. The file is closed with them."""
    import duckdb

    connection = opened(path)
    try:
        connection.do("begin transaction")
        found = found_tables.find(connection, *place, ledger)
        if found is None:
            connection.close()
            return None
        applied = connection.ask(
            "select partition, applied from _cdcworker.ledger where sink = %s and topic = %s and applied is not null",
            (ledger.sink, topic),
        )
    except BaseException as exc:
        connection.close()
        if isinstance(exc, duckdb.Error):
            raise from_duckdb(exc) from exc
        raise
    rows = batches(connection, statements.select(place, list(found.types)))
    return TargetRows(".".join(place), found.key, dict(applied), rows, connection.close)


def batches(connection: Connection, query: str) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a query, some at a time."""
    yield from connection.session.sql(query).to_arrow_reader(CHUNK_ROWS)
