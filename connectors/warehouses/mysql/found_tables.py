"""A table of the target as the server's catalog has it, and whether it takes the sink's rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cdcworker.connectors.api.table_batch import IS_CURRENT
from cdcworker.connectors.sink_errors import SCHEMA_REFUSED
from cdcworker.connectors.warehouses.mysql import statements, types
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from cdcworker.connectors.mysql_client.client import MySqlConnection

_TABLE: Final = "select table_type, engine from information_schema.tables where table_schema = %s and table_name = %s"
_COLUMNS: Final = """select column_name, column_type, is_nullable, column_default, extra, coalesce(generation_expression, ''),
      collation_name, column_comment from information_schema.columns
    where table_schema = %s and table_name = %s order by ordinal_position"""
_INDEXES: Final = """select index_name, non_unique, column_name, sub_part from information_schema.statistics
    where table_schema = %s and table_name = %s order by index_name, seq_in_index"""
_TRIGGERS: Final = """select count(*) from information_schema.triggers where event_object_schema = %s
    and event_object_table = %s and event_manipulation = 'INSERT' and action_timing = 'BEFORE'"""
_EXACT: Final = ("utf8mb4_nopad_bin", "utf8mb4_0900_bin", "ascii_nopad_bin", "binary")
"""Collations that tell upper from lower case, letters from those with accents, and texts from those with blanks behind them."""
_ENGINE: Final = "innodb"


@dataclass(frozen=True, slots=True)
class FoundColumn:
    name: str
    type: str
    nullable: bool
    required: bool
    """Whether a row that does not name the column is refused."""
    generated: bool
    collation: str | None
    comment: str


@dataclass(frozen=True, slots=True)
class FoundTable:
    """`unique`: the columns of each unique index, the primary key's first. `engine`: what stores its rows."""

    columns: Mapping[str, FoundColumn]
    unique: Sequence[tuple[str, ...]]
    primary: tuple[str, ...]
    fills: bool
    """Whether a trigger may fill columns before a row is inserted."""
    engine: str = _ENGINE

    @property
    def types(self) -> dict[str, str]:
        return {name: column.type for name, column in self.columns.items()}

    @property
    def hashed(self) -> bool:
        return statements.HASH in self.columns

    @property
    def versions(self) -> bool:
        """Whether it holds each version of a row."""
        return IS_CURRENT in self.columns

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that tell rows apart, but for the position of their versions; empty where nothing does."""
        if self.hashed:
            return key_of(self.columns[statements.HASH].comment)
        found = self.primary or (self.unique[0] if self.unique else ())
        return found[:-1] if self.versions else found


def key_of(comment: str) -> tuple[str, ...]:
    """Returns the key that the comment of a hash's column names."""
    names, inside, name = [], False, ""
    text, at = comment.removeprefix("key: "), 0
    while at < len(text):
        letter = text[at]
        if inside and letter == "`" and text[at + 1 : at + 2] == "`":
            name, at = name + "`", at + 1
        elif letter == "`":
            if inside:
                names.append(name)
            inside, name = not inside, ""
        elif inside:
            name += letter
        at += 1
    return tuple(names)


def find(connection: MySqlConnection, schema: str, table: str) -> FoundTable | None:
    """Returns a table; None: nothing has the name. CdcError SCHEMA_REFUSED where a view has it, or anything else."""
    place = (schema, table)
    found = connection.one(_TABLE, place)
    if found is None:
        return None
    if found[0] not in ("BASE TABLE", "SYSTEM VERSIONED"):
        text = "what has the table's name is a view, or anything else, but no table"
        raise CdcError(SCHEMA_REFUSED, text, where={"table": f"{schema}.{table}"})
    columns = {}
    for name, kind, nullable, default, extra, generation, collation, comment in connection.ask(_COLUMNS, place):
        generated = bool(generation) or "GENERATED" in str(extra).replace("DEFAULT_GENERATED", "")
        required = nullable == "NO" and default is None and not generated and "auto_increment" not in str(extra)
        columns[name] = FoundColumn(
            name, types.normal(_text(kind)), nullable != "NO", required, generated, collation, str(comment or "")
        )
    unique: dict[str, list[str]] = {}
    for index, repeats, column, part in connection.ask(_INDEXES, place):
        if not repeats:
            # A part of a column, or an expression, does not tell rows apart by their key.
            unique.setdefault(index, []).append(column if part is None and column is not None else "")
    primary = tuple(unique.pop("PRIMARY", ()))
    others = [tuple(names) for names in unique.values()]
    fills = connection.one(_TRIGGERS, place)
    indexes = [*([primary] if primary else []), *others]
    return FoundTable(columns, indexes, primary, bool(fills and fills[0]), str(found[1]).lower())


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def check(target: statements.TargetTable, found: FoundTable) -> None:
    """CdcError SCHEMA_REFUSED where the table takes no rows of the sink's, whatever is in them."""
    if found.engine != _ENGINE:
        text = f"the engine {found.engine} does not undo what a failed transaction wrote: use InnoDB"
        raise CdcError(SCHEMA_REFUSED, text, where={"table": target.plain_name})
    written = {*target.names, *(column.name for column in target.own), target.position}
    for column in found.columns.values():
        if column.name in written:
            if column.generated:
                raise _refused(target, column.name, "the column is generated always: no value can be written")
        elif column.required and not found.fills:
            text = "the column may not be null, has no default, and the source has none of its name"
            raise _refused(target, column.name, text)
    for name in () if target.hashed else target.key:
        if name in target.optional and found.columns[name].nullable:
            raise _refused(target, name, "rows whose key is null are told apart in tables that the sink makes only")
        collation = found.columns[name].collation
        if collation is not None and collation not in _EXACT and found.columns[name].type != types.UUID:
            text = f"the key's collation {collation} takes different texts for one: use {target.collation}"
            raise _refused(target, name, text)


def is_unique(target: statements.TargetTable, found: FoundTable) -> bool:
    """Returns whether rows of one key, and no others, are kept out by an index, and nothing else comes of an INSERT that turns out to be
    an UPDATE: a trigger before an INSERT runs for that too."""
    own = (statements.HASH,) if target.hashed else target.key
    own = (*own, target.position) if target.versions else own
    return bool(found.unique) and not found.fills and all(set(names) == set(own) for names in found.unique)


def check_key(target: statements.TargetTable, found: FoundTable) -> None:
    """CdcError SCHEMA_REFUSED where the table has another key, or was made with another output.mode."""
    if target.key and found.versions != target.versions:
        where = {"table": target.plain_name}
        raise CdcError(SCHEMA_REFUSED, "the table was made with another output.mode", where=where)
    has = found.key if found.hashed or found.versions else found.primary
    if has and set(has) != set(target.key):
        where = {"table": target.plain_name, "key": ",".join(target.key)}
        raise CdcError(SCHEMA_REFUSED, "the key of the table changed", where=where)


def _refused(target: statements.TargetTable, column: str, text: str) -> CdcError:
    return CdcError(SCHEMA_REFUSED, text, where={"table": target.plain_name, "column": column})


def same_order(found: FoundTable, names: Collection[str]) -> bool:
    """Returns whether the table's columns are these, in this order."""
    return list(found.columns) == list(names)
