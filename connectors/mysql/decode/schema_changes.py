"""Changes of tables as Debezium tells of them: a record for each statement, in the topic that is named as `topic.prefix`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cdcworker.connectors.mysql.decode.statements import keyword, name_at
from cdcworker.schemas.change import Change, Column, JsonObject, PlainRecord, Position, Table

Name = tuple[str, str]
_SPACE: Final = "io.debezium.connector.schema"
_DATABASE: Final = ("DATABASE", "SCHEMA")
_BEFORE_TABLE: Final = frozenset({"OR", "REPLACE", "ONLINE", "OFFLINE", "IGNORE"})
_BEFORE_INDEX: Final = frozenset({*_BEFORE_TABLE, "UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR"})
_OF_DATABASE: Final = frozenset({"DEFAULT", "CHARACTER", "CHARSET", "COLLATE", "COMMENT", "UPGRADE"})
"""What follows the word DATABASE where its name is left out."""
_EXISTS: Final = frozenset({"IF", "NOT", "EXISTS"})


class SchemaStatement(NamedTuple):
    """What a statement does to tables or to a database. `kind`: CREATE, ALTER or DROP."""

    kind: str
    database: str
    tables: Sequence[Name] = ()
    """Empty for a statement about the database itself."""


def schema_statement(found: list[str], database: str) -> SchemaStatement | None:
    """Returns what a statement of these words changes, in a session of this database; None: nothing that is told of. Temporary
    tables are not."""
    first, at = keyword(found), 1
    if first == "RENAME" and keyword(found, 1) in ("TABLE", "TABLES"):
        return _of_tables("ALTER", _renamed(found, database))
    if first not in ("CREATE", "ALTER", "DROP"):
        return None
    while keyword(found, at) in _BEFORE_INDEX:
        at += 1
    word, at = keyword(found, at), at + 1
    if word == "INDEX":
        return _of_tables("ALTER", _indexed(found, at, database))
    while keyword(found, at) in _EXISTS:
        at += 1
    if word == "TABLE":
        names = _listed(found, at, database) if first == "DROP" else _single(found, at, database)
        if first == "ALTER":
            names += _renamed_to(found, at, database)
        return _of_tables(first, names)
    if word in _DATABASE:
        is_named = at < len(found) and keyword(found, at) not in _OF_DATABASE
        return SchemaStatement(first, found[at].removeprefix("`") if is_named else database)
    return None


def _of_tables(kind: str, names: Sequence[Name]) -> SchemaStatement | None:
    return SchemaStatement(kind, names[0][0], names) if names else None


def _single(found: list[str], at: int, database: str) -> list[Name]:
    name = name_at(found, at, database)
    return [] if name is None else [name]


def _width(found: list[str], at: int) -> int:
    """How many words a name takes."""
    return 3 if at + 2 < len(found) and found[at + 1] == "." else 1


def _listed(found: list[str], at: int, database: str) -> list[Name]:
    """Names that commas separate."""
    names: list[Name] = []
    while (name := name_at(found, at, database)) is not None:
        names.append(name)
        at += _width(found, at)
        if at >= len(found) or found[at] != ",":
            break
        at += 1
    return names


def _renamed(found: list[str], database: str) -> list[Name]:
    """The names before and behind each TO."""
    names: list[Name] = []
    at = 2
    while keyword(found, at) in _EXISTS:
        at += 1
    while (name := name_at(found, at, database)) is not None:
        names.append(name)
        at += _width(found, at)
        if at >= len(found) or not (found[at] == "," or keyword(found, at) == "TO"):
            break
        at += 1
    return names


def _renamed_to(found: list[str], at: int, database: str) -> list[Name]:
    """The new name of a table that ALTER TABLE renames."""
    for place in range(at + _width(found, at), len(found) - 1):
        if keyword(found, place) == "RENAME" and keyword(found, place + 1) not in ("COLUMN", "INDEX", "KEY"):
            behind = place + (2 if keyword(found, place + 1) in ("TO", "AS") or found[place + 1] == "=" else 1)
            return _single(found, behind, database)
    return []


def _indexed(found: list[str], at: int, database: str) -> list[Name]:
    """The table of an index, behind its ON."""
    for place in range(at, len(found)):
        if keyword(found, place) == "ON":
            return _single(found, place + 1, database)
    return []


# -- records -----------------------------------------------------------------------------------------------------------


def _record(name: str, fields: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "namespace": _SPACE,
        "fields": [{"name": field, "type": kind, **_null(kind)} for field, kind in fields],
        "connect.version": 1,
        "connect.name": f"{_SPACE}.{name}",
    }


def _null(kind: Any) -> dict[str, Any]:
    return {"default": None} if isinstance(kind, list) else {}


def _optional(kind: Any) -> list[Any]:
    return ["null", kind]


_TEXTS: Final = {"type": "array", "items": "string"}
_ATTRIBUTE: Final = _record("Attribute", [("name", "string"), ("value", _optional("string"))])
_INT: Final = _optional("int")
_TEXT: Final = _optional("string")
_BOOLEAN: Final = _optional("boolean")
_COLUMN: Final = _record(
    "Column",
    [
        *(
            ("name", "string"),
            ("jdbcType", "int"),
            ("nativeType", _INT),
            ("typeName", "string"),
            ("typeExpression", _TEXT),
        ),
        *(("charsetName", _TEXT), ("length", _INT), ("scale", _INT), ("position", "int"), ("optional", _BOOLEAN)),
        *(
            ("autoIncremented", _BOOLEAN),
            ("generated", _BOOLEAN),
            ("comment", _TEXT),
            ("defaultValueExpression", _TEXT),
        ),
        ("enumValues", _optional(_TEXTS)),
        ("attributes", _optional({"type": "array", "items": _ATTRIBUTE})),
    ],
)
_TABLE: Final = _record(
    "Table",
    [
        ("defaultCharsetName", _TEXT),
        ("primaryKeyColumnNames", _optional(_TEXTS)),
        ("columns", {"type": "array", "items": _COLUMN}),
        ("comment", _TEXT),
        ("attributes", _optional({"type": "array", "items": f"{_SPACE}.Attribute"})),
    ],
)
_CHANGES: Final = {
    "type": "array",
    "items": _record("Change", [("type", "string"), ("id", "string"), ("table", _optional(_TABLE))]),
}


def schema_change_table(topic: str, connector: str, source_schema: Mapping[str, Any]) -> Table:
    """The shape of the records, which are written without an envelope. `connector` is Debezium's name of it."""
    names = f"io.debezium.connector.{connector}.SchemaChange"
    return Table(
        path=("schema_change",),
        table_id=0,
        columns=(
            Column("source", dict(source_schema), optional=False),
            Column("ts_ms", "long", optional=False),
            Column("databaseName", "string", optional=False),
            Column("schemaName", "string"),
            Column("ddl", "string"),
            Column("tableChanges", _CHANGES, optional=False),
        ),
        key=(2,),
        source_schema=source_schema,
        plain=PlainRecord(topic, f"{names}Key", f"{names}Value"),
    )


class SchemaChanges:
    """Makes the records of statements about captured tables, and about databases that may hold some."""

    def __init__(self, table: Table, captures: Callable[[str, str], bool], holds: Callable[[str], bool]) -> None:
        """`holds`: whether tables of a database may be captured."""
        self._table = table
        self._captures = captures
        self._holds = holds

    def change(self, statement: SchemaStatement, ddl: str, position: Position, source: JsonObject) -> Change | None:
        """Returns the record of a statement; None for one about nothing that is captured."""
        tables = [name for name in statement.tables if self._captures(*name)]
        if not tables and (statement.tables or not self._holds(statement.database)):
            return None
        changes = [
            {"type": statement.kind, "id": ".".join(f'"{part}"' for part in name), "table": None} for name in tables
        ]
        block = {**source, "db": statement.database, "table": ",".join(name for _, name in tables) or None}
        row = (block, source["ts_ms"], statement.database, None, ddl, changes)
        return Change("m", self._table, position, {}, None, row)
