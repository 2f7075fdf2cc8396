"""Arrow tables into PostgreSQL by COPY: the text is made column by column, rows are never Python objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.api.table_batch import (
    BASE,
    BEGAN,
    IS_CURRENT,
    KEY,
    OP,
    POSITION,
    UNCHANGED,
    VALID_FROM,
    VALID_TO,
    VALID_TO_POSITION,
    TableBatch,
)
from cdcworker.connectors.arrow.array_ops import one
from cdcworker.connectors.warehouses import value_text
from cdcworker.connectors.warehouses.postgres import statements
from cdcworker.connectors.warehouses.sql.stage_rows import bits_of
from cdcworker.connectors.warehouses.sql.target_table import KEPT, ORIGIN, ORIGIN_KEY, STAGE_KEY

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

    Connection = psycopg.Connection[tuple[Any, ...]]

CHUNK_ROWS = 16_384
"""Rows per piece of text: bounds what is held besides the batch itself."""


def stage(
    connection: Connection,
    target: statements.TargetTable,
    name: str,
    rows: pa.Table,
    unchanged: Mapping[str, Any],
    origins: pa.Table | None,
    keep_key: bool,
) -> dict[str, int]:
    """Fill the stage table `name`, in SQL; the bit of each column that some row did not bring."""
    copy(connection, name, columns_of(target, rows, unchanged, origins, keep_key))
    return bits_of(unchanged)


def columns_of(
    target: statements.TargetTable,
    rows: pa.Table,
    unchanged: Mapping[str, Any],
    origins: pa.Table | None,
    keep_key: bool,
) -> dict[str, Any]:
    """Returns the columns of a staging table as COPY takes them."""
    columns: dict[str, Any] = {}
    for column in target.columns:
        if column.field in rows.column_names:
            columns[column.name] = value_text.to_copy(one(rows[column.field]), column)
    columns[POSITION] = value_text.bytea_text(one(rows[POSITION]))
    if unchanged:
        columns[KEPT] = _bitmap(unchanged)
    if keep_key:
        columns[STAGE_KEY] = value_text.bytea_text(one(rows[KEY]))
    if origins is not None:
        columns[ORIGIN_KEY] = value_text.bytea_text(one(origins[KEY]))
        for column in target.columns:
            if column.name in target.key:
                columns[ORIGIN + column.name] = value_text.to_copy(one(origins[column.field]), column)
    return columns


def insert(connection: Connection, target: statements.TargetTable, rows: pa.Table) -> None:
    """Straight into the table; an error where it holds a row of one of the keys."""
    columns = {column.name: value_text.to_copy(one(rows[column.field]), column) for column in target.columns}
    columns[target.position] = value_text.bytea_text(one(rows[POSITION]))
    copy(connection, target.name, columns)


def stage_versions(
    connection: Connection, target: statements.TargetTable, name: str, batch: TableBatch
) -> dict[str, int]:
    """Fills the stage table of versions `name`, in SQL; returns the bit of each column that some version keeps."""
    if batch.upserts.num_rows:
        columns = columns_of(target, batch.upserts, batch.unchanged, batch.origins, True)
        columns.pop(ORIGIN_KEY, None)
        columns |= {BASE: value_text.bytea_text(one(batch.upserts[BASE])), **_version_columns(batch.upserts, BEGAN)}
        copy(connection, name, columns)
    if batch.deletes.num_rows:
        columns = columns_of(target, batch.deletes, {}, None, True)
        columns[VALID_FROM] = one(batch.deletes[VALID_FROM])
        columns[BEGAN] = value_text.bytea_text(one(batch.deletes[BEGAN]))
        copy(connection, name, columns)
    return bits_of(batch.unchanged)


def insert_versions(connection: Connection, target: statements.TargetTable, rows: pa.Table) -> None:
    """Straight into the table; an error where it has one of the versions, or a current one of one of the keys."""
    columns = {column.name: value_text.to_copy(one(rows[column.field]), column) for column in target.columns}
    columns[target.position] = value_text.bytea_text(one(rows[POSITION]))
    columns |= _version_columns(rows)
    columns[IS_CURRENT] = one(rows[VALID_TO_POSITION]).is_null()
    copy(connection, target.name, columns)


def _version_columns(rows: pa.Table, *more: str) -> dict[str, Any]:
    out = {name: one(rows[name]) for name in (OP, VALID_FROM, VALID_TO)}
    return out | {name: value_text.bytea_text(one(rows[name])) for name in (VALID_TO_POSITION, *more)}


def append(connection: Connection, target: statements.TargetTable, batch: TableBatch) -> None:
    if not batch.upserts.num_rows:
        return
    columns = {column.name: value_text.to_copy(one(batch.upserts[column.field]), column) for column in target.columns}
    for name in (OP, UNCHANGED):
        if name in batch.upserts.column_names:
            columns[name] = one(batch.upserts[name])
    if target.position:
        columns[target.position] = value_text.bytea_text(one(batch.upserts[POSITION]))
    copy(connection, target.name, columns)


def copy(connection: Connection, name: str, columns: Mapping[str, Any]) -> None:
    """COPY in CSV form: strings are quoted, null is nothing, so that null and the empty string stay apart."""
    import pyarrow as pa
    from pyarrow import csv

    options = csv.WriteOptions(include_header=False, quoting_style="needed")
    table = pa.table(dict(columns))
    # A column of nulls only has no type that COPY's text could show.
    statement = f"copy {name} ({statements.listed(table.column_names)}) from stdin (format csv)"
    with connection.cursor() as cursor, cursor.copy(statement) as target:
        for start in range(0, table.num_rows, CHUNK_ROWS):
            sink = pa.BufferOutputStream()
            csv.write_csv(table.slice(start, CHUNK_ROWS), sink, options)
            target.write(memoryview(sink.getvalue()))


def _bitmap(unchanged: Mapping[str, Any]) -> Any:
    """One bit per column, as get_bit counts them; null where nothing is kept."""
    import numpy as np
    import pyarrow as pa

    matrix = np.stack([np.asarray(flags, np.bool_) for flags in unchanged.values()], axis=1)
    packed = np.packbits(matrix, axis=1, bitorder="little")
    ends = np.arange(len(packed) + 1, dtype=np.int32) * packed.shape[1]
    some = pa.array(matrix.any(axis=1)).buffers()[1]
    text = np.ascontiguousarray(packed)
    return value_text.bytea_text(
        pa.Array.from_buffers(pa.binary(), len(packed), [some, pa.py_buffer(ends), pa.py_buffer(text)])
    )
