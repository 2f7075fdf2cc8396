"""What a table map leaves out comes from the catalog, as far as both speak of the same table.

The catalog is that of now, and a table map that of then. Without the names of columns in the log (binlog_row_metadata = MINIMAL) a
column that was renamed meanwhile cannot be noticed; everything else that a map says is compared, and a table that does not fit is
refused. With FULL the map counts, and the catalog adds only which binary strings are UUIDs or addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cdcworker.connectors.mysql.binlog.table_map import Column, KeyPart, TableMap
from cdcworker.connectors.mysql.catalog.tables import CatalogColumn, CatalogTable
from cdcworker.connectors.mysql.errors import SCHEMA_UNPLACED
from cdcworker.connectors.mysql.types import charsets
from cdcworker.connectors.mysql.types.column import ColumnType, TypeCode
from cdcworker.schemas.errors import CdcError

ReadTable = Callable[[str, str], CatalogTable | None]
"""From database and name to what the catalog has now; None: no such table."""
_FORMER: Final = {
    TypeCode.TIME: TypeCode.TIME2,
    TypeCode.DATETIME: TypeCode.DATETIME2,
    TypeCode.TIMESTAMP: TypeCode.TIMESTAMP2,
    TypeCode.NEWDATE: TypeCode.DATE,
}
"""Forms of columns that were made by old versions, and those that the catalog does not tell them from."""
_BINARY_STRINGS: Final = frozenset({TypeCode.STRING, TypeCode.VARCHAR})
TABLES_MAX: Final = 4096
"""Tables that are remembered; beyond it all are asked for anew. # INV-10"""


class CatalogMisfit(ValueError):
    """The catalog's table is not the one of a table map; the text says by what, and holds no value."""


class TableCatalog:
    """The catalog's tables, each asked for when it is first needed, and again when a table map does not fit it."""

    def __init__(self, read: ReadTable, *, is_mariadb: bool) -> None:
        self._read = read
        self._is_mariadb = is_mariadb
        self._tables: dict[tuple[str, str], CatalogTable | None] = {}

    def table(self, database: str, name: str) -> CatalogTable | None:
        """Returns what was read last, or reads it now."""
        found = self._tables.get((database, name))
        return self._reread(database, name) if found is None else found

    def forget_all(self) -> None:
        """A statement of the log may have changed any table."""
        self._tables.clear()

    def complete(self, table: TableMap) -> TableMap:
        """Returns the table map with what it lacks. Raises CdcError `mysql.schema_unplaced`, with the table."""
        if is_whole(table) and not self._is_mariadb:
            return table
        first = self.table(table.schema, table.table)
        try:
            return completed(table, first)
        except CatalogMisfit:
            again = self._reread(table.schema, table.table)
        try:
            return completed(table, again)
        except CatalogMisfit as exc:
            if is_whole(table):
                return self._by_names(table, again, exc)
            raise _unplaced(table, exc) from None

    def _by_names(self, table: TableMap, catalog: CatalogTable | None, misfit: CatalogMisfit) -> TableMap:
        """A map that says everything, of a table that has other columns by now: what it calls binary strings may be more."""
        known = {column.name: column for column in catalog.columns} if catalog else {}
        columns = []
        for column in table.columns:
            if is_binary_string(column.type):
                found = known.get(column.name)
                if found is None or found.type is None or not has_form(column.type, found.type):
                    raise _unplaced(table, misfit)
                column = column._replace(type=column.type._replace(declared=found.type.declared))
            columns.append(column)
        return table._replace(columns=tuple(columns))

    def _reread(self, database: str, name: str) -> CatalogTable | None:
        if len(self._tables) >= TABLES_MAX:
            self._tables.clear()
        found = self._tables[database, name] = self._read(database, name)
        return found


def _unplaced(table: TableMap, misfit: CatalogMisfit) -> CdcError:
    where = {"table": f"{table.schema}.{table.table}"}
    return CdcError(SCHEMA_UNPLACED, f"the log and the catalog do not describe the same table: {misfit}", where=where)


def is_whole(table: TableMap) -> bool:
    """Returns whether a map was written with binlog_row_metadata = FULL."""
    return bool(table.columns[0].name)


def is_binary_string(kind: ColumnType) -> bool:
    return kind.code in _BINARY_STRINGS and kind.collation == charsets.BINARY


def has_form(logged: ColumnType, catalog: ColumnType) -> bool:
    """Returns whether a column of the catalog has the code and the lengths that every table map says."""
    if logged.code in _FORMER:
        return catalog.code is _FORMER[logged.code]
    return (logged.code, logged.length, logged.scale) == (catalog.code, catalog.length, catalog.scale)


def describes(catalog: CatalogColumn, logged: ColumnType) -> bool:
    """Returns whether what the catalog says of a column is true of the type that the log gives it: it may have been altered since."""
    return catalog.type is None or (has_form(logged, catalog.type) and _agrees(logged, catalog.type))


def completed(table: TableMap, catalog: CatalogTable | None) -> TableMap:
    """Returns the map with what the catalog adds. Raises CatalogMisfit."""
    if catalog is None:
        raise CatalogMisfit("the catalog has no such table")
    if len(catalog.columns) != len(table.columns):
        raise CatalogMisfit(f"{len(table.columns)} columns in the log, {len(catalog.columns)} in the catalog")
    columns = tuple(map(_column, table.columns, catalog.columns))
    return table._replace(columns=columns, key=table.key if table.key is not None else _key(catalog))


def _column(logged: Column, catalog: CatalogColumn) -> Column:
    name = logged.name or catalog.name
    if name != catalog.name:
        raise CatalogMisfit(f"column {name} has another place or name")
    if logged.is_nullable is not catalog.is_nullable:
        raise CatalogMisfit(f"column {name} may be null in one of them only")
    if catalog.type is None:
        # Reading a value of it tells what is wrong.
        return logged._replace(name=name)
    kind, found = logged.type, catalog.type
    if not has_form(kind, found) or not _agrees(kind, found):
        raise CatalogMisfit(f"column {name} has another type")
    kind = kind._replace(
        is_unsigned=found.is_unsigned if kind.is_unsigned is None else kind.is_unsigned,
        collation=found.collation if kind.collation is None else kind.collation,
        members=found.members if kind.members is None else kind.members,
        declared=found.declared,
    )
    return logged._replace(name=name, type=kind)


def _agrees(logged: ColumnType, catalog: ColumnType) -> bool:
    """Returns whether nothing contradicts that the map says beyond its form."""
    if logged.is_unsigned is not None and logged.is_unsigned is not catalog.is_unsigned:
        return False
    if logged.members is not None and logged.members != catalog.members:
        return False
    if logged.collation is None or catalog.collation is None:
        return True
    return charsets.name_of(logged.collation) == charsets.name_of(catalog.collation)


def _key(catalog: CatalogTable) -> tuple[KeyPart, ...]:
    places = {column.name: i for i, column in enumerate(catalog.columns)}
    return tuple(KeyPart(places[name]) for name in catalog.primary)
