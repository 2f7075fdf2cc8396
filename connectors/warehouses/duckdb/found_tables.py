"""A table of the file as DuckDB's catalog has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cdcworker.connectors.api.table_batch import IS_CURRENT
from cdcworker.connectors.sink_errors import SCHEMA_REFUSED
from cdcworker.connectors.warehouses.duckdb.connection import Connection
from cdcworker.connectors.warehouses.duckdb.ledger import DuckDbLedger
from cdcworker.schemas.errors import CdcError

ROWID: Final = "rowid"
"""By which statements name the rows of a table: a column of that name hides it."""
_RELATION: Final = """select view_name from duckdb_views()
    where database_name = current_database() and schema_name = %s and view_name = %s"""
_COLUMNS: Final = """select column_name, data_type from duckdb_columns()
    where database_name = current_database() and schema_name = %s and table_name = %s order by column_index"""
_KEY: Final = 'select key from _cdcworker.table_key where "schema" = %s and "table" = %s'


@dataclass(frozen=True, slots=True)
class FoundTable:
    """The types of its columns, and its key, if the sink has made it."""

    types: Mapping[str, str]
    key: tuple[str, ...]

    @property
    def versions(self) -> bool:
        return IS_CURRENT in self.types


def find(connection: Connection, schema: str, table: str, ledger: DuckDbLedger) -> FoundTable | None:
    """Returns a table; None: nothing has the name. CdcError SCHEMA_REFUSED where a view has it, or a column the name of ROWID."""
    if connection.one(_RELATION, (schema, table)) is not None:
        where = {"table": f"{schema}.{table}"}
        raise CdcError(SCHEMA_REFUSED, "a view has the name of the table", where=where)
    types = dict(connection.ask(_COLUMNS, (schema, table)))
    if not types:
        return None
    check_names(list(types), f"{schema}.{table}")
    key = connection.one(_KEY, (schema, table)) if ledger.is_there(connection) else None
    return FoundTable(types, tuple(key[0]) if key else ())


def check_names(names: Sequence[str], table: str) -> None:
    """CdcError SCHEMA_REFUSED for names of columns that DuckDB does not tell apart, in upper or lower case, or that hide ROWID."""
    seen: set[str] = set()
    for name in names:
        lower = name.lower()
        if lower == ROWID or lower in seen:
            text = (
                "another column's name but for upper and lower case"
                if lower in seen
                else "a name that DuckDB needs itself"
            )
            text = f"a column has {text}: column.exclude.list leaves it out"
            raise CdcError(SCHEMA_REFUSED, text, where={"table": table, "column": name})
        seen.add(lower)


def put_key(connection: Connection, place: tuple[str, str], key: tuple[str, ...]) -> None:
    """Stores the key of a table, which no index of it says."""
    connection.do(
        """insert into _cdcworker.table_key ("schema", "table", key) values (%s, %s, %s)
           on conflict ("schema", "table") do update set key = excluded.key""",
        (*place, list(key)),
    )
