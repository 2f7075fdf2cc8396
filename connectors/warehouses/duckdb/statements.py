"""The statements that bring one table batch into DuckDB, as text composed from quoted identifiers and literals.

A row that changes is deleted and added again: an UPDATE rewrites whole groups of rows, column by column, and costs seconds where that
costs milliseconds. No table has an index, which would be in the way of that and of changes of columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cdcworker.connectors.api.table_batch import DELETED, POSITION
from cdcworker.connectors.warehouses.duckdb import types
from cdcworker.connectors.warehouses.duckdb.connection import ROWS
from cdcworker.connectors.warehouses.sql.statement_text import StatementText
from cdcworker.connectors.warehouses.sql.target_table import (
    KEPT,
    ORIGIN,
    ORIGIN_KEY,
    STAGE_KEY,
    SqlTable,
    TombstonePlace,
)

PLACE: Final = "_cdc_rowid"
"""Column of rows to come: where the row that they take the place of is; null for new ones."""
NEW: Final = 'temp."_cdc_new"'
_TOMBSTONES: Final = "_cdcworker.tombstone"


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


_TEXT: Final = StatementText(quote, literal)
listed, clause, tombstones_of = _TEXT.listed, _TEXT.clause, _TEXT.tombstones_of


def binary(value: bytes) -> str:
    return f"unhex('{value.hex()}')"


def values_of(place: TombstonePlace) -> str:
    """Returns the sink and the topic of tombstones as values."""
    return f"{literal(place.sink)} as sink, {literal(place.topic)} as topic"


@dataclass(frozen=True, slots=True)
class TargetTable(SqlTable):
    """A table as it stands in the file."""

    @property
    def name(self) -> str:
        return f"{quote(self.schema)}.{quote(self.table)}"

    @property
    def others(self) -> tuple[str, ...]:
        """Columns that the batch says nothing of."""
        known = {*self.names, self.position, *(column.name for column in self.stamps)}
        return tuple(name for name in self.types if name not in known)

    def on(self, left: str, right: str, prefix: str = "") -> str:
        """Equality of keys, any column of which may be null."""
        pairs = ((f"{left}.{quote(name)}", f"{right}.{quote(prefix + name)}") for name in self.key)
        return " and ".join(f"{one} is not distinct from {other}" for one, other in pairs)


def create_table(target: TargetTable) -> str:
    parts = [f"{quote(column.name)} {target.types[column.name]}" for column in target.columns]
    parts += [clause(column) for column in target.own]
    parts += [f"{quote(target.position)} {types.BYTES}"] if target.position else []
    return f"create table {target.name} ({', '.join(parts)})"


def newest(target: TargetTable, position: str) -> str:
    """The highest position in the column that now has them."""
    return f"select max({quote(position)}) from {target.name}"


def stage(target: TargetTable, name: str, own: Mapping[str, str]) -> str:
    """Makes a stage table, whose name is SQL's, of the rows that it is executed with: the target's own types, and `own` columns."""
    casts = [f"cast({quote(column)} as {target.types[column]}) as {quote(column)}" for column in target.names]
    casts += [
        f"cast({quote(ORIGIN + key)} as {target.types[key]}) as {quote(ORIGIN + key)}"
        for key in target.key
        if ORIGIN + key in own
    ]
    casts += [f"cast({quote(column)} as {kind}) as {quote(column)}" for column, kind in own.items() if kind]
    return f"create or replace temp table {name} as select {', '.join(casts)} from {ROWS}"


def insert(target: TargetTable, names: Sequence[str]) -> str:
    """Adds the rows that it is executed with."""
    return f"insert into {target.name} ({listed(names)}) select {listed(names)} from {ROWS}"


def _kept(bits: Mapping[str, int], name: str) -> str:
    return f"substr(s.{quote(KEPT)}, {bits[name] + 1}, 1) = '1'"


def value(bits: Mapping[str, int], name: str, other: str = "t") -> str:
    """The staged value of a column, or the one of row `other` where the change did not bring it."""
    if name not in bits:
        return f"s.{quote(name)}"
    return f"case when {_kept(bits, name)} then {other}.{quote(name)} else s.{quote(name)} end"


def replaced(target: TargetTable, query: str) -> str:
    """Puts rows in the place of others. `query` returns all columns of the table, and PLACE."""
    names = listed([*target.types])
    return f"""create or replace temp table {NEW} as {query};
        delete from {target.name} where rowid in (select {PLACE} from {NEW});
        insert into {target.name} ({names}) select {names} from {NEW}"""


# -- rows ---------------------------------------------------------------------------------------------------------------


def merged(
    target: TargetTable, stage_name: str, bits: Mapping[str, int], place: TombstonePlace | None, floor: bytes | None
) -> str:
    """Makes the table of the rows to come: those that are newer than what is there, and whole. With `place` rows behind a tombstone
    stay out, with `floor` those at or below it."""
    values = [f"{value(bits, name)} as {quote(name)}" for name in target.names]
    values += [f"s.{quote(POSITION)} as {quote(target.position)}"]
    values += [f"{column.value} as {quote(column.name)}" for column in target.stamps]
    values += [f"t.{quote(name)}" for name in target.others] + [f"t.rowid as {PLACE}"]
    position, staged = f"t.{quote(target.position)}", f"s.{quote(POSITION)}"
    whole = f" and s.{quote(KEPT)} is null" if bits else ""
    source = f"from {stage_name} s left join {target.name} t on {target.on('t', 's')}"
    where = f"(t.rowid is null{whole} or t.rowid is not null and ({position} is null or {position} < {staged}))"
    if place is not None:
        source += f" left join {_TOMBSTONES} b on {tombstones_of(place)} and b.key = s.{quote(STAGE_KEY)}"
        where += f" and (b.position is null or b.position < {staged})"
    if floor is not None:
        where += f" and {staged} > {binary(floor)}"
    return f"create or replace temp table {NEW} as select {', '.join(values)} {source} where {where}"


def put(target: TargetTable) -> list[str]:
    """Brings the rows to come into their table: they take the place of others, or are new and have the defaults of columns that the
    batch says nothing of."""
    names = [*target.names, target.position, *(column.name for column in target.stamps)]
    every = [*names, *target.others]
    return [
        f"delete from {target.name} where rowid in (select {PLACE} from {NEW})",
        f"insert into {target.name} ({listed(every)}) select {listed(every)} from {NEW} where {PLACE} is not null",
        f"insert into {target.name} ({listed(names)}) select {listed(names)} from {NEW} where {PLACE} is null",
    ]


def orphans(target: TargetTable, stage_name: str) -> str:
    """Returns the query for the number of staged rows that keep columns of a row that does not exist."""
    return f"""select count(*) from {stage_name} s left join {target.name} t on {target.on("t", "s")}
        where s.{quote(KEPT)} is not null and t.rowid is null"""


def truncate(target: TargetTable, floor: bytes) -> str:
    """Rows without a position stood there before the sink came."""
    position = f"t.{quote(target.position)}"
    older = f"{position} is null or {position} < {binary(floor)}"
    if target.soft and target.key:
        return replaced(
            target, f"select t.* replace ({_marks(target)}), t.rowid as {PLACE} from {target.name} t where {older}"
        )
    return f"delete from {target.name} t where {older}"


def delete(target: TargetTable, stage_name: str) -> str:
    position, staged = f"t.{quote(target.position)}", f"s.{quote(POSITION)}"
    where = f"{target.on('t', 's')} and ({staged} is null or {position} is null or {position} < {staged})"
    if not target.soft:
        return f"delete from {target.name} t using {stage_name} s where {where}"
    marks = f"{_marks(target)}, coalesce({staged}, {position}) as {quote(target.position)}"
    return replaced(
        target, f"select t.* replace ({marks}), t.rowid as {PLACE} from {target.name} t, {stage_name} s where {where}"
    )


def _marks(target: TargetTable) -> str:
    return ", ".join(
        f"{'true' if column.name == DELETED else column.value} as {quote(column.name)}" for column in target.stamps
    )


# -- rows that change their key -----------------------------------------------------------------------------------------


def copy_origin_row(target: TargetTable, stage_name: str, bits: Mapping[str, int]) -> str:
    """Rows under a new key take what they did not bring from the row under the old key, where it still stands."""
    sets = ", ".join(f"{quote(name)} = {value(bits, name, 'o')}" for name in bits)
    position = f"o.{quote(target.position)}"
    return f"""update {stage_name} s set {sets}, {quote(KEPT)} = null from {target.name} o
        where {target.on("o", "s", ORIGIN)} and s.{quote(ORIGIN_KEY)} is not null and s.{quote(KEPT)} is not null
          and ({position} is null or {position} < s.{quote(POSITION)})"""


def copy_origin_tombstone(target: TargetTable, stage_name: str, bits: Mapping[str, int], place: TombstonePlace) -> str:
    """Returns the statement that copies missing columns from the tombstone of the old key. A row under that key is newer
    than the deleted one."""
    sets = ", ".join(
        f"{quote(name)} = case when {_kept(bits, name)} then {_stored(target, name)} else s.{quote(name)} end"
        for name in bits
    )
    return f"""update {stage_name} s set {sets}, {quote(KEPT)} = null from {_TOMBSTONES} b
        where {tombstones_of(place)} and b.key = s.{quote(ORIGIN_KEY)} and b.row is not null
          and b.position < s.{quote(POSITION)} and s.{quote(KEPT)} is not null"""


def _stored(target: TargetTable, name: str) -> str:
    text, kind = f"b.row[{literal(name)}]", target.types[name]
    return f"unhex({text})" if kind == types.BYTES else f"cast({text} as {kind})"


def _held(target: TargetTable, name: str, expression: str) -> str:
    return f"hex({expression})" if target.types[name] == types.BYTES else f"cast({expression} as varchar)"


def insert_tombstones(stage_name: str, place: TombstonePlace) -> str:
    """Remember deletes, so that an older row of another partition does not bring the key back."""
    return _remembered(
        f"select {values_of(place)}, s.{quote(STAGE_KEY)} as key, s.{quote(POSITION)} as position, null as row"
        f" from {stage_name} s where s.{quote(POSITION)} is not null",
        "<",
    )


def insert_moved_tombstones(
    target: TargetTable, stage_name: str, bits: Mapping[str, int], place: TombstonePlace
) -> str:
    """Remember rows that leave for another key as they were: what is staged, else what the target holds."""
    pairs = ", ".join(f"{literal(name)}: {_held(target, name, value(bits, name))}" for name in target.names)
    return _remembered(
        f"select {values_of(place)}, s.{quote(STAGE_KEY)} as key, s.{quote(POSITION)} as position, map {{{pairs}}} as row"
        f" from {stage_name} s left join {target.name} t on {target.on('t', 's')}"
        f" where s.{quote(KEPT)} is null or t.rowid is not null",
        "<=",
    )


def _remembered(query: str, than: str) -> str:
    return f"""merge into {_TOMBSTONES} b using ({query}) n on b.sink = n.sink and b.topic = n.topic and b.key = n.key
        when matched and b.position {than} n.position then
          update set position = n.position, row = n.row, written_at = get_current_timestamp()
        when not matched then insert (sink, topic, key, position, row, written_at)
          values (n.sink, n.topic, n.key, n.position, n.row, get_current_timestamp())"""


def select(place: tuple[str, str], names: Sequence[str], hides: str = "", shows: str = "") -> str:
    """The columns of all rows, but for those in which the column `hides` is true; with `shows` of those in which that one is."""
    where = f" where not coalesce({quote(hides)}, false)" if hides else ""
    where = f" where {quote(shows)}" if shows else where
    return f"select {listed(names)} from {quote(place[0])}.{quote(place[1])}{where}"
