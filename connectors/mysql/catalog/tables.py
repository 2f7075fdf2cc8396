"""Tables as information_schema describes them: their columns in order, and the columns that tell rows apart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cdcworker.connectors.mysql.catalog.column_types import CatalogType, column_type, constant_of
from cdcworker.connectors.mysql.errors import UnknownTypeError
from cdcworker.connectors.mysql.types.column import ColumnType
from cdcworker.schemas.change import NO_DEFAULT

if TYPE_CHECKING:
    from cdcworker.connectors.mysql_client.client import MySqlConnection

PRIMARY: Final = "PRIMARY"


class CatalogColumn(NamedTuple):
    """A column. `type` is None for a type that is not known; `default` is a text, None for NULL, NO_DEFAULT for none."""

    name: str
    type: ColumnType | None
    is_nullable: bool
    source_type: str
    """Its type as a CREATE TABLE has it."""
    default: Any = NO_DEFAULT
    is_json: bool = False
    """MariaDB: a text that is checked to be JSON."""
    is_virtual: bool = False
    """It is computed when it is read: a log with minimal images of rows lacks its value, though that may be another one."""


class CatalogTable(NamedTuple):
    """A table. `primary` are the columns of its primary key, `key` those by which its rows are told apart: the primary key, or
    the columns of a unique index that holds no nulls; empty where there is none."""

    database: str
    name: str
    columns: tuple[CatalogColumn, ...]
    primary: tuple[str, ...]
    key: tuple[str, ...]


def read_table(connection: MySqlConnection, database: str, name: str, *, is_mariadb: bool) -> CatalogTable | None:
    """Asks the server; None: there is no such table, or the user may not see it."""
    rows = connection.ask(
        "select column_name, data_type, column_type, character_set_name, character_octet_length, numeric_precision, numeric_scale,"
        " datetime_precision, is_nullable, column_default, extra from information_schema.columns"
        " where table_schema = %s and table_name = %s order by ordinal_position",
        (database, name),
    )
    if not rows:
        return None
    checked = _checked_as_json(connection, database, name) if is_mariadb else frozenset()
    columns = tuple(_column(row, checked, is_mariadb=is_mariadb) for row in rows)
    primary, key = keys_of(read_unique_indexes(connection, database, name))
    return CatalogTable(database, name, columns, primary, key)


def _column(row: tuple[Any, ...], checked: frozenset[str], *, is_mariadb: bool) -> CatalogColumn:
    name, data_type, text, charset, octets, precision, scale, digits, nullable, default, extra = row
    found = CatalogType(str(data_type), str(text), charset, octets, precision, scale, digits)
    try:
        kind: ColumnType | None = column_type(found)
    except UnknownTypeError:
        kind = None
    is_nullable = nullable == "YES"
    constant = constant_of(default, str(extra), is_mariadb=is_mariadb, nullable=is_nullable, missing=NO_DEFAULT)
    is_json, is_virtual = name in checked or data_type == "json", "VIRTUAL" in str(extra).upper()
    return CatalogColumn(str(name), kind, is_nullable, str(text), constant, is_json, is_virtual)


def _checked_as_json(connection: MySqlConnection, database: str, name: str) -> frozenset[str]:
    """Returns the columns that MariaDB's type JSON has made: texts with a check of their own."""
    rows = connection.ask(
        "select constraint_name, check_clause from information_schema.check_constraints"
        " where constraint_schema = %s and table_name = %s and level = 'Column'",
        (database, name),
    )
    return frozenset(str(column) for column, clause in rows if str(clause).lower().startswith("json_valid("))


class IndexPart(NamedTuple):
    """A column of a unique index, in the order of the index. `column` is None for an expression."""

    of_index: str
    column: str | None
    is_prefix: bool
    is_nullable: bool
    in_key: bool = False
    """The server takes the column for one of the table's key, which without a primary key is a unique index: the log says it, and
    holds its columns of every old row."""


def read_unique_indexes(connection: MySqlConnection, database: str, name: str) -> list[IndexPart]:
    """Asks the server for the parts of a table's unique indexes."""
    path = (database, name)
    rows = connection.ask(
        "select index_name, column_name, sub_part, nullable from information_schema.statistics"
        " where table_schema = %s and table_name = %s and non_unique = 0 order by index_name, seq_in_index",
        path,
    )
    # Asked for by itself: in a join the server looks at the columns of all tables.
    keyed = connection.ask(
        "select column_name from information_schema.columns where table_schema = %s and table_name = %s and column_key = 'PRI'",
        path,
    )
    in_key = {column for (column,) in keyed}
    return [
        IndexPart(str(index), column, part is not None, nullable == "YES", column in in_key)
        for index, column, part, nullable in rows
    ]


def keys_of(parts: Iterable[IndexPart]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the columns of the primary key, and those by which rows are told apart. Of several unique indexes the one counts that the
    server takes for the key; where it takes none, the one of the fewest columns, and of these the first by its name."""
    indexes: dict[str, list[IndexPart]] = {}
    for part in parts:
        indexes.setdefault(part.of_index, []).append(part)
    primary = tuple(str(part.column) for part in indexes.pop(PRIMARY, ()))
    if primary:
        return primary, primary
    keyed = {part.column for found in indexes.values() for part in found if part.in_key}
    fit = [
        ({part.column for part in found} != keyed, len(found), index, tuple(str(part.column) for part in found))
        for index, found in indexes.items()
        if not any(part.column is None or part.is_prefix or part.is_nullable for part in found)
    ]
    return (), min(fit)[3] if fit else ()
