"""A table of the target as PostgreSQL's catalogue has it, and what has to be altered for it to take other columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cdcworker.connectors.sink_errors import SCHEMA_REFUSED
from cdcworker.connectors.warehouses.postgres import statements, type_conflicts
from cdcworker.connectors.warehouses.source_types import TargetColumn, widened
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

_COLUMNS: Final = """select a.attname, format_type(a.atttypid, a.atttypmod)
    from pg_attribute a where a.attrelid = %s::oid and a.attnum > 0 and not a.attisdropped order by a.attnum"""
_TABLE: Final = """select c.oid, c.relkind::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = %s and c.relname = %s"""
_UNIQUE: Final = """select exists (select from pg_index i where i.indrelid = to_regclass(%s)
      and i.indisunique and i.indisvalid and i.indimmediate and i.indexprs is null
      and coalesce(pg_get_expr(i.indpred, i.indrelid), '') = %s and (i.indnullsnotdistinct or not %s) and %s::text[] @> (select array_agg(a.attname::text)
        from pg_attribute a where a.attrelid = i.indrelid and a.attnum = any(i.indkey)))"""


class FoundTable(NamedTuple):
    """A table by its number in the catalogue, with the types of its columns."""

    oid: int
    types: dict[str, str]


def find(connection: Connection, schema: str, table: str) -> FoundTable | None:
    """Returns a table; None: nothing has the name. CdcError SCHEMA_REFUSED where a view has it, or anything else."""
    found = connection.execute(_TABLE, (schema, table)).fetchone()
    if found is None:
        return None
    type_conflicts.is_table((schema, table), found[1])
    return FoundTable(found[0], dict(connection.execute(_COLUMNS, (found[0],)).fetchall()))


def is_unique(
    connection: Connection, target: statements.TargetTable, rows: str = "", *, key: Sequence[str] | None = None
) -> bool:
    """Returns whether an index keeps a second row of a key out, among all rows or those of a condition."""
    names = list(target.key if key is None else key)
    found = connection.execute(_UNIQUE, (target.name, rows, bool(target.optional_key), names)).fetchone()
    return bool(found and found[0])


def column_clauses(
    target: statements.TargetTable,
    types: Mapping[str, str],
    default_of: Callable[[TargetColumn], str],
    widens: Callable[[str], None],
) -> tuple[list[str], dict[str, str]]:
    """Returns the clauses of an ALTER TABLE that adds and widens columns, and the types then. `default_of` gives what stands behind
    a new column's type, and `widens` raises where a column may not be widened. CdcError SCHEMA_REFUSED where no type holds both."""
    out, clauses = dict(types), list[str]()
    for column in target.columns:
        have = types.get(column.name)
        if have is None:
            clauses.append(f"add column {statements.quote(column.name)} {column.type}{default_of(column)}")
            out[column.name] = column.type
            continue
        needed = widened(have, column.type)
        if needed is None:
            raise CdcError(
                SCHEMA_REFUSED,
                f"a column of type {have} cannot hold {column.type}",
                where={"table": target.plain_name, "column": column.name},
            )
        if needed != have:
            widens(column.name)
            name = statements.quote(column.name)
            clauses.append(f"alter column {name} type {needed} using {name}::{needed}")
            out[column.name] = needed
    return clauses, out
