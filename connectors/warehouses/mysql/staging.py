"""Rows of a batch into the temporary tables of a session, from which they are merged."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.table_batch import (
    BASE,
    BEGAN,
    KEY,
    OP,
    POSITION,
    UNCHANGED,
    VALID_FROM,
    VALID_TO,
    TableBatch,
)
from cdcworker.connectors.arrow.array_ops import one
from cdcworker.connectors.warehouses.mysql import load, statements, values, version_statements
from cdcworker.connectors.warehouses.mysql.connection import BOOKKEEPING
from cdcworker.connectors.warehouses.sql.stage_rows import bits_of, check_key, flags_of
from cdcworker.connectors.warehouses.sql.target_table import KEPT, ORIGIN_KEY, STAGE_KEY
from cdcworker.connectors.warehouses.sql.versions import VersionStageTables
from cdcworker.schemas.threads import thread_pool

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    import pyarrow as pa
    from cdcworker.connectors.mysql_client.client import MySqlConnection

TABLES_MAX = 512
"""Temporary tables of a session; when there are more, all are dropped."""


class Stages:
    """The temporary tables of one session. A transaction that ends leaves their rows: they go before the next one."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], tuple[str, statements.TargetTable]] = {}
        self._used: set[str] = set()

    def forget(self) -> None:
        """The session is another one."""
        self._made.clear()
        self._used.clear()

    def empty(self, connection: MySqlConnection) -> None:
        """Before a transaction: some servers end one that truncates a temporary table."""
        if len(self._made) > TABLES_MAX:
            for name, _ in self._made.values():
                connection.do(statements.drop_stage(name))
            self.forget()
        for name in self._used:
            connection.do(f"truncate table {name}")
        self._used.clear()

    def take(self, connection: MySqlConnection, target: statements.TargetTable, kind: str) -> str:
        """Returns an empty stage table of the target's shape; its name in SQL."""
        known = self._made.get((target.name, kind))
        same = known is not None and _shape(known[1]) == _shape(target)
        name = known[0] if known else f"{BOOKKEEPING}.{statements.quote(f'_cdc_{kind}_{len(self._made)}')}"
        if same and name in self._used:
            connection.do(f"delete from {name}")
        elif not same:
            for statement in _DEFINITIONS.get(kind, statements.stage)(target, name):
                connection.do(statement)
        self._made[target.name, kind] = (name, target)
        self._used.add(name)
        return name


_DEFINITIONS: Final[Mapping[str, Callable[[statements.TargetTable, str], list[str]]]] = {
    version_statements.VERSIONS: version_statements.stage,
    version_statements.PLAN: version_statements.plan,
}
"""Of stage tables that are others than those of current rows."""


def _shape(target: statements.TargetTable) -> object:
    return target.names, target.key, [target.types[name] for name in target.names]


def fill(
    connection: MySqlConnection,
    target: statements.TargetTable,
    name: str,
    rows: pa.Table,
    unchanged: Mapping[str, Any],
    origins: pa.Table | None,
    keep_key: bool,
) -> dict[str, int]:
    """Fill the stage table `name`, in SQL; the bit of each column that some row did not bring."""
    load.load(connection, name, _staged(target, rows, unchanged, origins, keep_key))
    return bits_of(unchanged)


def _staged(
    target: statements.TargetTable,
    rows: pa.Table,
    unchanged: Mapping[str, Any],
    origins: pa.Table | None,
    keep_key: bool,
) -> dict[str, Any]:
    columns = _values(target, rows)
    columns[POSITION] = one(rows[POSITION])
    if unchanged:
        columns[KEPT] = flags_of(unchanged)
    if keep_key:
        columns[STAGE_KEY] = hashed(one(rows[KEY]))
    if origins is not None:
        columns[ORIGIN_KEY] = hashed(one(origins[KEY]))
        for column in target.columns:
            if column.name in target.key:
                found = values.to_mysql(one(origins[column.field]), column, target.types[column.name])
                columns[statements.origin(target, column.name)] = found
    return columns


class VersionStages:
    """The stage tables of versions and of plans, of one session."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages

    def fill(
        self, connection: MySqlConnection, target: statements.TargetTable, batch: TableBatch
    ) -> VersionStageTables:
        import pyarrow as pa

        stage, plan = (
            self._stages.take(connection, target, kind)
            for kind in (version_statements.VERSIONS, version_statements.PLAN)
        )
        parts = [(batch.upserts, batch.unchanged, batch.origins), (batch.deletes, {}, None)]
        first = _firsts([rows[KEY] for rows, _, _ in parts if rows.num_rows])
        for rows, unchanged, origins in parts:
            if not rows.num_rows:
                continue
            columns = _staged(target, rows, unchanged, origins, True)
            columns.pop(ORIGIN_KEY, None)
            columns |= {name: one(rows[name]) for name in (BASE, BEGAN, OP) if name in rows.column_names}
            columns[VALID_FROM] = _moments(one(rows[VALID_FROM]))
            mine, first = first[: rows.num_rows], first[rows.num_rows :]
            columns[version_statements.FIRST] = pa.array(["1" if is_first else None for is_first in mine], pa.string())
            load.load(connection, stage, columns)
        return VersionStageTables(stage, plan, bits_of(batch.unchanged))

    def keys(self, rows: pa.Table) -> pa.Array:
        return hashed(one(rows[KEY]))

    def plan(
        self, connection: MySqlConnection, target: statements.TargetTable, staged: VersionStageTables, rows: pa.Table
    ) -> None:
        # What it had goes by a DELETE: some servers end a transaction that truncates.
        connection.do(f"delete from {staged.plan}")
        columns = {name: one(rows[name]) for name in rows.column_names}
        columns[VALID_TO] = _moments(columns[VALID_TO])
        load.load(connection, staged.plan, columns)


def _firsts(keys: Sequence[Any]) -> list[bool]:
    """Marks the first row of each key."""
    seen: set[bytes] = set()
    out = []
    for key in itertools.chain.from_iterable(column.to_pylist() for column in keys):
        out.append(key not in seen)
        seen.add(key)
    return out


def _moments(times: pa.Array) -> pa.Array:
    """Returns times as the server reads them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.strftime(times.cast(pa.timestamp("us")), format="%Y-%m-%d %H:%M:%S").cast(pa.string())


class TextAhead:
    """The text of fresh rows, which a thread makes while the server works at what goes into their table before them."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._made: tuple[pa.Table, Future[load.LoadText]] | None = None

    def begin(self, connection: MySqlConnection | None, target: statements.TargetTable, rows: pa.Table) -> None:
        """Begins to make the text of rows that are inserted soon, unless it is too long to be held beside other rows."""
        self._made = None
        if connection is None or not connection.server.loads or not load.is_one_piece(rows):
            return
        self._pool = self._pool or thread_pool(1, "mysql-text")
        self._made = (rows, self._pool.submit(lambda: load.text_of(_fresh(target, rows))))

    def insert(self, connection: MySqlConnection, target: statements.TargetTable, rows: pa.Table) -> None:
        """Straight into the table; RowExistsError where it holds a row of one of the keys."""
        made, self._made = self._made, None
        if made is not None and made[0] is rows:
            load.send(connection, target.name, made[1].result())
        else:
            load.load(connection, target.name, _fresh(target, rows))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _fresh(target: statements.TargetTable, rows: pa.Table) -> dict[str, Any]:
    return {**_values(target, rows), target.position: one(rows[POSITION])}


def append(connection: MySqlConnection, target: statements.TargetTable, batch: TableBatch) -> None:
    if not batch.upserts.num_rows:
        return
    columns = _values(target, batch.upserts)
    for name in (OP, UNCHANGED):
        if name in batch.upserts.column_names:
            columns[name] = one(batch.upserts[name])
    if target.position:
        columns[target.position] = one(batch.upserts[POSITION])
    load.load(connection, target.name, columns)


def _values(target: statements.TargetTable, rows: pa.Table) -> dict[str, Any]:
    check_key(target, rows)
    return {
        column.name: values.to_mysql(one(rows[column.field]), column, target.types[column.name])
        for column in target.columns
        if column.field in rows.column_names
    }


def hashed(keys: pa.Array) -> pa.Array:
    """Returns the hash of each encoded key, which is as long as an index takes."""
    import pyarrow as pa

    found = (None if key is None else hashlib.sha256(key).digest() for key in keys.to_pylist())
    return pa.array(found, pa.binary())
