"""The statements that bring one table batch into PostgreSQL, as text composed from quoted identifiers and literals.

None takes parameters: psycopg would look for placeholders in the names of tables and columns, where a % may stand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cdcworker.connectors.api.table_batch import DELETED, POSITION
from cdcworker.connectors.warehouses.sql.statement_text import StatementText
from cdcworker.connectors.warehouses.sql.target_table import (
    KEPT,
    ORIGIN,
    ORIGIN_KEY,
    STAGE_KEY,
    SqlTable,
    TombstonePlace,
)


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    return (
        "'" + text.replace("'", "''") + "'"
        if "\\" not in text
        else "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
    )


_TEXT: Final = StatementText(quote, literal)
listed, clause, tombstones_of = _TEXT.listed, _TEXT.clause, _TEXT.tombstones_of


def binary(value: bytes) -> str:
    return f"'\\x{value.hex()}'::bytea"


def values_of(place: TombstonePlace) -> str:
    """Returns the sink and the topic of tombstones as values."""
    return f"{literal(place.sink)}, {literal(place.topic)}"


@dataclass(frozen=True, slots=True)
class TargetTable(SqlTable):
    """A table as it stands in PostgreSQL, and which columns of its key may be null."""

    optional_key: frozenset[str] = frozenset()
    """Key columns that may be null: then a unique index stands in for the primary key."""

    @property
    def name(self) -> str:
        return f"{quote(self.schema)}.{quote(self.table)}"

    def on(self, left: str, right: str, prefix: str = "") -> str:
        """Equality of keys."""
        return " and ".join(
            f"{left}.{quote(name)} {'is not distinct from' if name in self.optional_key else '='} "
            f"{right}.{quote(prefix + name)}"
            for name in self.key
        )


def create_table(target: TargetTable) -> str:
    parts = [f"{quote(column.name)} {column.type}" for column in target.columns]
    parts += [clause(column) for column in target.own]
    parts += [f"{quote(target.position)} bytea"] if target.position else []
    key = (*target.key, target.position) if target.versions else target.key
    if target.key and not target.optional_key:
        parts.append(f"primary key ({listed(key)})")
    elif target.key:
        parts.append(f"unique nulls not distinct ({listed(key)})")
    return f"create table if not exists {target.name} ({', '.join(parts)})"


def drop_columns(target: TargetTable, names: Sequence[str]) -> str:
    return f"alter table {target.name} " + ", ".join(f"drop column {quote(name)}" for name in names)


def newest(target: TargetTable, position: str) -> str:
    """The highest position in the column that now has them."""
    name = quote(position)
    return f"select {name} from {target.name} where {name} is not null order by {name} desc limit 1"


def stage(target: TargetTable, name: str) -> list[str]:
    """A temporary table of the target's own types, kept for the session and emptied by each commit; `name` is SQL's."""
    origins = "".join(f", null::{target.types[key]} as {quote(ORIGIN + key)}" for key in target.key)
    return [
        f"drop table if exists pg_temp.{name}",
        f"""create temp table {name} on commit delete rows as select {listed(target.names)},
            null::bytea as {quote(POSITION)}, null::bytea as {quote(KEPT)},
            null::bytea as {quote(STAGE_KEY)}, null::bytea as {quote(ORIGIN_KEY)}{origins}
            from {target.name} with no data""",
    ]


def stage_table(target: TargetTable, name: str) -> str:
    """Returns the statement that creates the staging table of rows that come over other connections: an unlogged one, not a
    temporary one."""
    columns = [(column, target.types[column]) for column in target.names]
    columns += [(column, "bytea") for column in (POSITION, KEPT, STAGE_KEY, ORIGIN_KEY)]
    columns += [(ORIGIN + key, target.types[key]) for key in target.key]
    listed = ", ".join(f"{quote(column)} {kind}" for column, kind in columns)
    return f"create unlogged table {name} ({listed}) with (autovacuum_enabled = false)"


def inherit(stage_name: str, whole: str) -> str:
    """Rows of the one are rows of the other."""
    return f"alter table {stage_name} inherit {whole}"


def drop(stage_name: str) -> str:
    return f"drop table if exists {stage_name} cascade"


def empty(stage_name: str) -> str:
    return f"truncate {stage_name}"


def _kept(bits: Mapping[str, int], name: str) -> str:
    return f"get_bit(s.{quote(KEPT)}, {bits[name]}) = 1"


def value(bits: Mapping[str, int], name: str, other: str = "t") -> str:
    """The staged value of a column, or the one of row `other` where the change did not bring it."""
    if name not in bits:
        return f"s.{quote(name)}"
    return f"case when {_kept(bits, name)} then {other}.{quote(name)} else s.{quote(name)} end"


def merge(
    target: TargetTable, stage_name: str, bits: Mapping[str, int], place: TombstonePlace | None, floor: bytes | None
) -> str:
    """Upsert, newer positions only. With `place` rows behind a tombstone stay out, with `floor` those at or below it."""
    source = f"select s.* from {stage_name} s"
    conditions = []
    if place is not None:
        source += f""" left join _cdcworker.tombstone b
            on {tombstones_of(place)} and b.key = s.{quote(STAGE_KEY)}"""
        conditions.append(f"(b.position is null or b.position < s.{quote(POSITION)})")
    if floor is not None:
        conditions.append(f"s.{quote(POSITION)} > {binary(floor)}")
    if conditions:
        source += " where " + " and ".join(conditions)
    plain = [name for name in target.names if name not in target.key]
    sets = ", ".join(
        [f"{quote(name)} = {value(bits, name)}" for name in plain]
        + [f"{quote(column.name)} = {column.value}" for column in target.stamps]
    )
    names = listed([*target.names, target.position, *(column.name for column in target.stamps)])
    values = ", ".join([listed([*target.names, POSITION], "s."), *(column.value for column in target.stamps)])
    position, staged = quote(target.position), quote(POSITION)
    whole = f" and s.{quote(KEPT)} is null" if bits else ""
    return f"""merge into {target.name} t using ({source}) s on {target.on("t", "s")}
        when matched and (t.{position} is null or t.{position} < s.{staged}) then
          update set {sets + ", " if sets else ""}{position} = s.{staged}
        when not matched{whole} then
          insert ({names}) values ({values})"""


def insert(target: TargetTable, stage_name: str) -> str:
    names, staged = listed([*target.names, target.position]), listed([*target.names, POSITION])
    stamps = "".join(f", {quote(column.name)}" for column in target.stamps)
    values = "".join(f", {column.value}" for column in target.stamps)
    return f"insert into {target.name} ({names}{stamps}) select {staged}{values} from {stage_name}"


def orphans(target: TargetTable, stage_name: str) -> str:
    """Returns the query for the number of staged rows that keep columns of a row that does not exist. Such rows are few, so
    each looks for its own: a join would read the target."""
    return f"""select count(*) from {stage_name} s
        left join lateral (select true as there from {target.name} t where {target.on("t", "s")} limit 1) o on true
        where s.{quote(KEPT)} is not null and o.there is null"""


def truncate(target: TargetTable, floor: bytes) -> str:
    """Rows without a position stood there before the sink came."""
    position = quote(target.position)
    older = f"{position} is null or {position} < {binary(floor)}"
    if target.soft and target.key:
        return f"update {target.name} set {_marks(target)} where {older}"
    return f"delete from {target.name} where {older}"


def copy_origin_tombstone(target: TargetTable, stage_name: str, bits: Mapping[str, int], place: TombstonePlace) -> str:
    """Returns the statement that copies missing columns from the tombstone of the old key. A row under that key is newer
    than the deleted one."""
    sets = ", ".join(f"{quote(name)} = {value(bits, name, 'o')}" for name in bits)
    return f"""update {stage_name} s set {sets}, {quote(KEPT)} = null
        from _cdcworker.tombstone b, lateral jsonb_populate_record(null::{target.name}, b.row) o
        where {tombstones_of(place)} and b.key = s.{quote(ORIGIN_KEY)} and b.row is not null
          and b.position < s.{quote(POSITION)} and s.{quote(KEPT)} is not null"""


def copy_origin_row(target: TargetTable, stage_name: str, bits: Mapping[str, int]) -> str:
    """Rows under a new key take what they did not bring from the row under the old key, where it still stands."""
    sets = ", ".join(f"{quote(name)} = {value(bits, name, 'o')}" for name in bits)
    return f"""update {stage_name} s set {sets}, {quote(KEPT)} = null
        from {target.name} o where {target.on("o", "s", ORIGIN)} and s.{quote(ORIGIN_KEY)} is not null and s.{quote(KEPT)} is not null
          and (o.{quote(target.position)} is null or o.{quote(target.position)} < s.{quote(POSITION)})"""


def delete(target: TargetTable, stage_name: str) -> str:
    position, staged = quote(target.position), quote(POSITION)
    older = f"s.{staged} is null or t.{position} is null or t.{position} < s.{staged}"
    if target.soft:
        return f"""update {target.name} t set {_marks(target)}, {position} = coalesce(s.{staged}, t.{position})
            from {stage_name} s where {target.on("t", "s")} and ({older})"""
    return f"""delete from {target.name} t using {stage_name} s where {target.on("t", "s")}
        and ({older})"""


def _marks(target: TargetTable) -> str:
    return ", ".join(
        f"{quote(column.name)} = {'true' if column.name == DELETED else column.value}" for column in target.stamps
    )


def insert_tombstones(stage_name: str, place: TombstonePlace) -> str:
    """Remember deletes, so that an older row of another partition does not bring the key back."""
    return f"""insert into _cdcworker.tombstone as b (sink, topic, key, position)
        select {values_of(place)}, {quote(STAGE_KEY)}, {quote(POSITION)} from {stage_name}
        where {quote(POSITION)} is not null
        on conflict (sink, topic, key) do update set position = excluded.position, row = null, at = now()
        where b.position < excluded.position"""


def insert_moved_tombstones(
    target: TargetTable, stage_name: str, bits: Mapping[str, int], place: TombstonePlace
) -> str:
    """Remember rows that leave for another key as they were: what is staged, else what the target holds."""
    columns = ", ".join(f"{value(bits, name)} as {quote(name)}" for name in target.names)
    return f"""insert into _cdcworker.tombstone as b (sink, topic, key, position, row)
        select {values_of(place)}, s.{quote(STAGE_KEY)}, s.{quote(POSITION)},
          (select to_jsonb(o) from (select {columns}) o)
        from {stage_name} s left join {target.name} t on {target.on("t", "s")}
        where s.{quote(KEPT)} is null or t.ctid is not null
        on conflict (sink, topic, key) do update set position = excluded.position, row = excluded.row, at = now()
        where b.position <= excluded.position"""
