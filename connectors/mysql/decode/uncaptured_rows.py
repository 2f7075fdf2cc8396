"""Rows of tables that are not captured have to be counted, and so to be passed over value by value, whatever the values are."""

from __future__ import annotations

from typing import Final

from cdcworker.connectors.mysql.binlog.table_map import TableMap
from cdcworker.connectors.mysql.types import charsets
from cdcworker.connectors.mysql.types.column import STRINGS, ColumnType, TypeCode

_INTEGERS: Final = {1: TypeCode.TINY, 2: TypeCode.SHORT, 3: TypeCode.INT24, 4: TypeCode.LONG, 8: TypeCode.LONGLONG}
"""By bytes of a value."""
_PREFIXED: Final = frozenset(
    {TypeCode.JSON, TypeCode.GEOMETRY, TypeCode.VECTOR, TypeCode.BLOB, TypeCode.BLOB_COMPRESSED}
)


def countable(table: TableMap) -> TableMap:
    """Returns the table map with types of the same widths whose values need no signs, members and character sets."""
    return table._replace(columns=tuple(column._replace(type=_plain(column.type)) for column in table.columns))


def _plain(kind: ColumnType) -> ColumnType:
    code = kind.code
    if code in (TypeCode.ENUM, TypeCode.SET):
        return ColumnType(_INTEGERS[kind.length], is_unsigned=True)
    if code in _PREFIXED:
        return ColumnType(TypeCode.BLOB, kind.length, collation=charsets.BINARY)
    if code in STRINGS:
        # As VARCHAR, whose value is taken as it is.
        return ColumnType(TypeCode.VARCHAR, kind.length, collation=charsets.BINARY)
    return kind._replace(is_unsigned=True)
