"""A table of the catalog as Debezium's schema change events describe it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.mysql.catalog.column_types import constant_of, members_of
from cdcworker.connectors.mysql.catalog.tables import keys_of, read_unique_indexes
from cdcworker.schemas.change import JsonObject

if TYPE_CHECKING:
    from cdcworker.connectors.mysql_client.client import MySqlConnection

_OTHER: Final = 1111
_JDBC_TYPES: Final = {
    **dict.fromkeys(("mediumint", "int", "year"), 4),
    **dict.fromkeys(("tinyint", "smallint"), 5),
    **dict.fromkeys(("char", "enum", "set"), 1),
    **{f"{size}text": 12 for size in ("tiny", "", "medium", "long")},
    **{f"{size}blob": 2004 for size in ("tiny", "", "medium", "long")},
    "bigint": -5,
    "binary": -2,
    "bit": -7,
    "date": 91,
    "datetime": 93,
    "decimal": 3,
    "double": 8,
    "float": 6,
    "time": 92,
    "timestamp": 2014,
    "varbinary": -3,
    "varchar": 12,
}
"""The numbers that Debezium gives types, which are those of JDBC."""
_TIMES: Final = frozenset({"time", "datetime", "timestamp"})
_SIZED: Final = frozenset({"char", "varchar", "binary", "varbinary"})
_COMMA: Final = 1


def describe(connection: MySqlConnection, database: str, name: str, *, is_mariadb: bool) -> JsonObject | None:
    """Asks the server; None: there is no such table, or the user may not see it."""
    tables = connection.ask(
        "select character_set_name, table_comment from information_schema.tables t left join"
        " information_schema.collation_character_set_applicability c on"
        f" c.{'full_collation_name' if is_mariadb else 'collation_name'} = t.table_collation"
        " where table_schema = %s and table_name = %s",
        (database, name),
    )
    if not tables:
        return None
    columns = connection.ask(
        "select column_name, data_type, column_type, character_set_name, character_maximum_length, numeric_precision,"
        " numeric_scale, datetime_precision, is_nullable, column_default, extra, column_comment, ordinal_position"
        " from information_schema.columns where table_schema = %s and table_name = %s order by ordinal_position",
        (database, name),
    )
    charset, comment = tables[0]
    primary, _ = keys_of(read_unique_indexes(connection, database, name))
    return {
        "defaultCharsetName": charset,
        "primaryKeyColumnNames": list(primary),
        "columns": [_column(row, is_mariadb=is_mariadb) for row in columns],
        "comment": comment or None,
    }


def _column(row: tuple[Any, ...], *, is_mariadb: bool) -> JsonObject:
    name, data_type, text, charset, characters, precision, scale, digits, nullable, default, extra, comment, place = row
    kind, declared, is_nullable = str(data_type).lower(), str(text), nullable == "YES"
    type_name = kind.upper() + (" UNSIGNED" if " unsigned" in declared.lower() else "")
    members = members_of(declared) if kind in ("enum", "set") else ()
    constant = constant_of(default, str(extra), is_mariadb=is_mariadb, nullable=is_nullable, missing=None)
    is_automatic = "auto_increment" in str(extra).lower()
    return {
        "name": str(name),
        "jdbcType": _JDBC_TYPES.get(kind, _OTHER),
        "nativeType": None,
        "typeName": type_name,
        "typeExpression": type_name,
        "charsetName": charset,
        "length": _length(kind, declared, members, characters, precision, digits),
        "scale": scale if kind == "decimal" else None,
        "position": int(place),
        "optional": is_nullable,
        "autoIncremented": is_automatic,
        "generated": is_automatic or "GENERATED" in str(extra).upper().replace("DEFAULT_GENERATED", ""),
        "comment": comment or None,
        "defaultValueExpression": constant,
        "enumValues": [f"'{member}'" for member in members] or None,
    }


def _length(
    kind: str,
    declared: str,
    members: tuple[str, ...],
    characters: int | None,
    precision: int | None,
    digits: int | None,
) -> int | None:
    """What stands in brackets behind the type where the server shows the table."""
    if kind == "enum":
        return 1
    if kind == "set":
        # All members with a comma between each two, as Debezium counts them.
        return max(2 * len(members) - _COMMA, 0)
    if kind in _TIMES:
        return digits or None
    if kind in _SIZED:
        return characters
    if kind in ("decimal", "bit"):
        return precision
    inner = declared.partition("(")[2].partition(")")[0]
    return int(inner) if inner.isdecimal() else None
