"""Rows of a batch into the temporary tables of a session, from which they are merged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.table_batch import (
    BASE,
    BEGAN,
    KEY,
    OP,
    POSITION,
    UNCHANGED,
    VALID_FROM,
    TableBatch,
)
from cdcworker.connectors.arrow.array_ops import one
from cdcworker.connectors.warehouses import arrow_types
from cdcworker.connectors.warehouses.duckdb import statements, types, version_statements
from cdcworker.connectors.warehouses.duckdb.connection import Connection
from cdcworker.connectors.warehouses.sql.stage_rows import StageRows, bits_of, check_key, flags_of
from cdcworker.connectors.warehouses.sql.target_table import KEPT, ORIGIN, ORIGIN_KEY, STAGE_KEY
from cdcworker.connectors.warehouses.sql.versions import VersionStageTables

if TYPE_CHECKING:
    import pyarrow as pa

_OWN: Final = {POSITION: types.BYTES, KEPT: types.TEXT, STAGE_KEY: types.BYTES, ORIGIN_KEY: types.BYTES}
_OF_VERSIONS: Final = {
    **dict.fromkeys((POSITION, BASE, BEGAN, STAGE_KEY), types.BYTES),
    KEPT: types.TEXT,
    OP: types.TEXT,
    VALID_FROM: types.MOMENT,
}


def stage_name(kind: str) -> str:
    """Returns the name in SQL of a session's stage table: u for rows, m for moved ones, d for deletes, v for versions."""
    return f'temp."_cdc_{kind}"'


def fill(connection: Connection, target: statements.TargetTable, kind: str, staged: StageRows) -> str:
    """Makes a stage table of rows; returns its name in SQL."""
    name = stage_name(kind)
    _put(connection, target, name, _columns(target, staged), _OWN)
    return name


def _put(
    connection: Connection, target: statements.TargetTable, name: str, columns: dict[str, Any], own: dict[str, str]
) -> None:
    import pyarrow as pa

    rows = len(next(iter(columns.values())))
    origins = [ORIGIN + key for key in target.key]
    for column in (*target.names, *own, *origins):
        columns.setdefault(column, pa.nulls(rows, pa.string()))
    connection.put(statements.stage(target, name, own | dict.fromkeys(origins, "")), pa.table(columns))


def _columns(target: statements.TargetTable, staged: StageRows) -> dict[str, Any]:
    import pyarrow as pa

    out = _values(target, staged.rows)
    out[POSITION] = one(staged.rows[POSITION])
    if staged.unchanged:
        out[KEPT] = flags_of(staged.unchanged).cast(pa.string())
    if staged.keep_key:
        out[STAGE_KEY] = one(staged.rows[KEY])
    if staged.origins is not None:
        out[ORIGIN_KEY] = one(staged.origins[KEY])
        for column in target.columns:
            if column.name in target.key:
                found = arrow_types.to_arrow(one(staged.origins[column.field]), column, types.arrow_of(column))
                out[ORIGIN + column.name] = found
    return out


def append(connection: Connection, target: statements.TargetTable, batch: TableBatch) -> None:
    """Adds the rows of a table without a key."""
    if not batch.upserts.num_rows:
        return
    import pyarrow as pa

    columns = _values(target, batch.upserts)
    for name in (OP, UNCHANGED):
        if name in batch.upserts.column_names:
            columns[name] = one(batch.upserts[name])
    if target.position:
        columns[target.position] = one(batch.upserts[POSITION])
    connection.put(statements.insert(target, list(columns)), pa.table(columns))


def _values(target: statements.TargetTable, rows: pa.Table) -> dict[str, Any]:
    check_key(target, rows)
    return {
        column.name: arrow_types.to_arrow(one(rows[column.field]), column, types.arrow_of(column))
        for column in target.columns
        if column.field in rows.column_names
    }


class VersionStages:
    """The stage tables of versions and of plans."""

    def fill(self, connection: Connection, target: statements.TargetTable, batch: TableBatch) -> VersionStageTables:
        import pyarrow as pa

        parts = []
        for rows, unchanged, origins in (
            (batch.upserts, batch.unchanged, batch.origins),
            (batch.deletes, {}, None),
        ):
            if rows.num_rows:
                columns = _columns(target, StageRows(rows, unchanged, origins))
                columns.pop(ORIGIN_KEY, None)
                columns |= {
                    name: one(rows[name]) for name in (BASE, BEGAN, OP, VALID_FROM) if name in rows.column_names
                }
                parts.append(pa.table(columns))
        both = pa.concat_tables(parts, promote_options="permissive").combine_chunks()
        found = {name: one(both[name]) for name in both.column_names}
        _put(connection, target, version_statements.UNNUMBERED, found, _OF_VERSIONS)
        stage, plan = stage_name("v"), stage_name("p")
        connection.do(version_statements.numbered(stage))
        return VersionStageTables(stage, plan, bits_of(batch.unchanged))

    def keys(self, rows: pa.Table) -> pa.Array:
        return one(rows[KEY])

    def plan(
        self, connection: Connection, target: statements.TargetTable, staged: VersionStageTables, rows: pa.Table
    ) -> None:
        connection.put(version_statements.plan(staged.plan), rows)
