"""Rows of one target table with the position that they hold everything through, in one snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.api.table_writer import TargetRows
from cdcworker.connectors.warehouses.postgres import statements

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

    Connection = psycopg.Connection[tuple[Any, ...]]

CHUNK_ROWS = 10_000
_KEY = """select coalesce(array_agg(a.attname::text order by array_position(i.indkey::int2[], a.attnum)), '{}')
    from pg_index i join pg_attribute a on a.attrelid = i.indrelid and a.attnum = any(i.indkey)
    where i.indrelid = %s::regclass and i.indisunique and i.indpred is null"""


def read(connection: Connection, sink: str, topic: str, place: tuple[str, str]) -> TargetRows | None:
    name = f"{statements.quote(place[0])}.{statements.quote(place[1])}"
    found = connection.execute("select to_regclass(%s)::text", (name,)).fetchone()
    if not found or found[0] is None:
        connection.close()
        return None
    connection.execute("begin isolation level repeatable read read only")
    key = connection.execute(_KEY, (name,)).fetchone()
    applied = connection.execute(
        "select partition, applied from _cdcworker.ledger where sink = %s and topic = %s and applied is not null",
        (sink, topic),
    ).fetchall()
    positions = {partition: bytes(at) for partition, at in applied}
    return TargetRows(
        ".".join(place), tuple(key[0]) if key else (), positions, _batches(connection, name), connection.close
    )


def _batches(connection: Connection, name: str) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    from psycopg.types.string import TextLoader

    with connection.cursor("rows") as cursor:
        for kind in ("json", "jsonb"):
            # What it says has another shape in each row, and a column has one type.
            cursor.adapters.register_loader(kind, TextLoader)
        cursor.execute("select * from " + name)
        names = [column.name for column in cursor.description or ()]
        while chunk := cursor.fetchmany(CHUNK_ROWS):
            yield pa.RecordBatch.from_pylist([dict(zip(names, row, strict=True)) for row in chunk])
