"""From a column's row in information_schema to the type that a table map gives it, with all that the map may leave out."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from cdcworker.connectors.mysql.errors import UnknownTypeError
from cdcworker.connectors.mysql.types import charsets
from cdcworker.connectors.mysql.types.column import YEAR_2, ColumnType, TypeCode

_PLAIN: Final = {
    "tinyint": TypeCode.TINY,
    "smallint": TypeCode.SHORT,
    "mediumint": TypeCode.INT24,
    "int": TypeCode.LONG,
    "bigint": TypeCode.LONGLONG,
    "date": TypeCode.DATE,
    "year": TypeCode.YEAR,
}
_SIZED: Final = {
    "float": (TypeCode.FLOAT, 4),
    "double": (TypeCode.DOUBLE, 8),
    "json": (TypeCode.JSON, 4),
    "vector": (TypeCode.VECTOR, 4),
}
_TIMES: Final = {"time": TypeCode.TIME2, "datetime": TypeCode.DATETIME2, "timestamp": TypeCode.TIMESTAMP2}
_FIXED: Final = ("char", "binary")
_VARYING: Final = ("varchar", "varbinary")
_BLOBS: Final = {
    **{
        f"{size}{kind}": width
        for kind in ("blob", "text")
        for size, width in (("tiny", 1), ("", 2), ("medium", 3), ("long", 4))
    },
}
_GEOMETRIES: Final = frozenset(
    {
        *("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"),
        *("geometrycollection", "geomcollection"),
    }
)
_DECLARED: Final = {"uuid": 16, "inet4": 4, "inet6": 16}
"""MariaDB's types that table maps have as binary strings, with their lengths."""
_SIGNED: Final = frozenset({*_PLAIN, "float", "double", "decimal"}) - {"date"}
_MEMBERS_OF_ONE_BYTE: Final = 255
_SET_BYTES: Final = (1, 2, 3, 4, 8)
_ESCAPES: Final = {"0": "\0", "n": "\n", "r": "\r", "Z": "\x1a"}


class CatalogType(NamedTuple):
    """A column's type by the columns of information_schema.columns; `column_type` is its text in a CREATE TABLE."""

    data_type: str
    column_type: str
    charset: str | None = None
    octets: int | None = None
    precision: int | None = None
    scale: int | None = None
    digits: int | None = None


def column_type(found: CatalogType) -> ColumnType:
    """Returns the type. Raises UnknownTypeError for one that is not known here."""
    name = found.data_type.lower()
    out = _form(name, found)
    if name in _SIGNED:
        text = found.column_type.lower()
        # A year never is negative, and table maps say so.
        return out._replace(is_unsigned=name == "year" or " unsigned" in text, declared=text if text == YEAR_2 else "")
    if name in ("enum", "set"):
        return out._replace(collation=_collation(found), members=members_of(found.column_type))
    if name in _FIXED or name in _VARYING or name in _BLOBS:
        return out._replace(collation=_collation(found))
    return out


def _form(name: str, found: CatalogType) -> ColumnType:
    """Returns the part of the type that every table map has."""
    is_compressed = "compressed" in found.column_type.lower()
    if name in _PLAIN:
        return ColumnType(_PLAIN[name])
    if name in _SIZED:
        return ColumnType(*_SIZED[name])
    if name in _TIMES:
        return ColumnType(_TIMES[name], found.digits or 0)
    if name == "decimal":
        return ColumnType(TypeCode.NEWDECIMAL, found.precision or 0, found.scale or 0)
    if name == "bit":
        return ColumnType(TypeCode.BIT, found.precision or 1)
    if name in _FIXED:
        return ColumnType(TypeCode.STRING, found.octets or 0)
    if name in _VARYING:
        octets = found.octets or 0
        # A compressed value has a byte before it that says how.
        return (
            ColumnType(TypeCode.VARCHAR_COMPRESSED, octets + 1)
            if is_compressed
            else ColumnType(TypeCode.VARCHAR, octets)
        )
    if name in _BLOBS:
        return ColumnType(TypeCode.BLOB_COMPRESSED if is_compressed else TypeCode.BLOB, _BLOBS[name])
    return _other(name, found)


def _other(name: str, found: CatalogType) -> ColumnType:
    if name in _GEOMETRIES:
        return ColumnType(TypeCode.GEOMETRY, 4)
    if name in _DECLARED:
        return ColumnType(TypeCode.STRING, _DECLARED[name], collation=charsets.BINARY, declared=name)
    if name in ("enum", "set"):
        count = len(members_of(found.column_type))
        if name == "enum":
            return ColumnType(TypeCode.ENUM, 1 if count <= _MEMBERS_OF_ONE_BYTE else 2)
        return ColumnType(TypeCode.SET, next(size for size in _SET_BYTES if count <= 8 * size))
    raise UnknownTypeError(f"type {name}")


def _collation(found: CatalogType) -> int:
    return charsets.BINARY if found.charset is None else charsets.collation_of(found.charset)


def members_of(text: str) -> tuple[str, ...]:
    """Reads the members of `enum('a','b')`, in which a quote is doubled and a few characters are escaped."""
    out: list[str] = []
    at = text.find("'")
    while at >= 0:
        member, at = _quoted(text, at)
        out.append(member)
        at = text.find("'", at)
    return tuple(out)


def _quoted(text: str, at: int) -> tuple[str, int]:
    """Returns the text in the quotes that begin at `at`, and the place after them."""
    out: list[str] = []
    at += 1
    while at < len(text):
        character = text[at]
        if character == "\\" and at + 1 < len(text):
            out.append(_ESCAPES.get(text[at + 1], text[at + 1]))
            at += 2
        elif character != "'":
            out.append(character)
            at += 1
        elif text[at + 1 : at + 2] == "'":
            out.append("'")
            at += 2
        else:
            return "".join(out), at + 1
    raise ValueError("a text in quotes that does not end")


def constant_of(default: str | None, extra: str, *, is_mariadb: bool, nullable: bool, missing: Any) -> Any:
    """Returns a column's default as text, None for NULL, `missing` where there is none or it is computed."""
    if not is_mariadb:
        if "DEFAULT_GENERATED" in extra.upper():
            return missing
        return default if default is not None else None if nullable else missing
    if default is None:
        return missing
    if default.upper() == "NULL":
        return None
    if default.startswith("'"):
        text, end = _quoted(default, 0)
        return text if end == len(default) else missing
    return default if default.lstrip("-").replace(".", "", 1).isdecimal() else missing
