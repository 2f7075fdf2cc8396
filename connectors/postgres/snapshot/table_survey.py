"""Divides a large table into ranges of its key, by a sample of its pages."""

from __future__ import annotations

from typing import Final

import psycopg
from cdcworker.connectors.capture.snapshot.chunks import TableSurvey
from cdcworker.connectors.postgres.decode.table_plan import TableDecodePlan
from cdcworker.connectors.postgres.server.publication_members import TREE
from cdcworker.connectors.postgres.snapshot.chunk_reader import ChunkReader, rights, trusted
from psycopg import sql

SAMPLE_PAGES: Final = 200
SAMPLE_ROWS_MAX: Final = 20_000
PAGE: Final = 8192

_REMEMBERED: Final = f"""
with recursive {TREE}
select coalesce(sum(c.relpages), 0)::bigint, coalesce(sum(b.relpages), 0)::bigint
from tree join pg_class r on r.oid = tree.root and (r.relkind = 'p' or r.relispartition)
join pg_class c on c.oid = tree.oid left join pg_class b on b.oid = c.reltoastrelid
"""


class TableReader(ChunkReader):
    """A reader that divides tables as well; one of those of a pool."""

    def survey(self, table_id: int, parts_max: int, bytes_min: int) -> TableSurvey:
        """The ranges of a table that is worth dividing."""
        return survey(self, table_id, parts_max, bytes_min)


def survey(reader: ChunkReader, oid: int, parts_max: int, bytes_min: int) -> TableSurvey:
    """Divides a table that is worth it by a sample of its keys; how even the ranges are matters for speed only."""
    plan, info = reader.look(oid)
    if not plan.table.key:
        return TableSurvey(keyless=True)
    pages, beside = _pages(reader, oid)
    size = None if info.partitioned else (pages + beside) * PAGE
    if parts_max < 2 or pages * PAGE < bytes_min:
        return TableSurvey(keyless=False, size=size)
    return TableSurvey(False, _bounds(_sample(reader, plan, info.partitioned, pages), parts_max), size)


def _pages(reader: ChunkReader, oid: int) -> tuple[int, int]:
    """Returns the pages of the table with its partitions and their TOAST tables."""
    row = reader.connection.execute(_REMEMBERED.encode(), {"oids": [oid]}).fetchone()
    if row and row[0]:
        return row[0], row[1]
    # Never looked at by the server itself. The size of a table is told to whoever may lock it.
    try:
        with reader.connection.transaction():
            reader.limit_locks()
            row = reader.connection.execute(
                "select pg_relation_size(c.oid) / %s, coalesce(pg_relation_size(nullif(c.reltoastrelid, 0)) / %s, 0)"
                " from pg_class c where c.oid = %s",
                (PAGE, PAGE, oid),
            ).fetchone()
    except psycopg.errors.LockNotAvailable:
        raise reader.busy(oid) from None
    return (row[0] or 0, row[1]) if row else (0, 0)


def _sample(reader: ChunkReader, plan: TableDecodePlan, partitioned: bool, pages: int) -> list[tuple[str, ...]]:
    keys = [sql.Identifier(column.name) for column in plan.table.key_columns]
    share = min(100.0, 100.0 * SAMPLE_PAGES / pages)
    statement = sql.SQL("select {} from {} {} tablesample system ({}) order by {} limit {}").format(
        sql.SQL(", ").join(sql.SQL("{}::text").format(key) for key in keys),
        sql.SQL("" if partitioned else "only"),
        sql.Identifier(*plan.table.path),
        trusted(f"{share:.6f}"),
        sql.SQL(", ").join(keys),
        sql.Literal(SAMPLE_ROWS_MAX),
    )
    try:
        with rights(plan.table.path), reader.connection.transaction():
            reader.limit_locks()
            return [tuple(row) for row in reader.connection.execute(statement).fetchall()]
    except (psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable):
        raise reader.busy(plan.table.table_id) from None


def _bounds(sample: list[tuple[str, ...]], parts_max: int) -> tuple[tuple[str, ...], ...]:
    chosen = [sample[number * len(sample) // parts_max] for number in range(1, parts_max) if sample]
    return tuple(dict.fromkeys(chosen))
