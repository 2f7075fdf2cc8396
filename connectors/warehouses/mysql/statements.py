"""The statements that bring one table batch into MySQL, as text composed from quoted identifiers and literals. None takes
parameters: a % may stand in the names of tables and columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cdcworker.connectors.api.table_batch import DELETED, POSITION
from cdcworker.connectors.warehouses.mysql import types
from cdcworker.connectors.warehouses.sql.statement_text import StatementText
from cdcworker.connectors.warehouses.sql.target_table import (
    KEPT,
    ORIGIN,
    ORIGIN_KEY,
    STAGE_KEY,
    SqlTable,
    TombstonePlace,
)

HASH: Final = "_cdc_key_hash"
"""Column of tables whose key no index holds whole: a hash of the key, which the server makes."""
NUMBER: Final = "_cdc_number"
"""Stage column: its primary key, which servers with sql_require_primary_key ask of temporary tables too."""
POSITION_TYPE: Final = "varbinary(16)"
_HASH_TYPE: Final = "binary(32)"
_TOO_OFTEN: Final = 5000
"""So many positions in a row are longer than any column of positions."""


def quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


_TEXT: Final = StatementText(quote, literal)
listed, clause, tombstones_of = _TEXT.listed, _TEXT.clause, _TEXT.tombstones_of


def binary(value: bytes) -> str:
    return f"x'{value.hex()}'"


def values_of(place: TombstonePlace) -> str:
    """Returns the sink and the topic of tombstones as values."""
    return f"{literal(place.sink)}, {literal(place.topic)}"


@dataclass(frozen=True, slots=True)
class TargetTable(SqlTable):
    """A table as it stands in MySQL: types as they are declared, and whether a hash stands in for its key. `unique`: a second row of a
    key is refused at once, and nothing else is."""

    hashed: bool = False
    optional: frozenset[str] = frozenset()
    """Columns of the key that may be null in the source."""
    collation: str = ""
    """Of columns that the sink makes."""

    @property
    def name(self) -> str:
        return f"{quote(self.schema)}.{quote(self.table)}"

    @property
    def there(self) -> str:
        """The column of `t` that is null only where a join found no row."""
        return f"t.{quote(HASH if self.hashed else self.key[0])}"

    def with_types(self, found: Mapping[str, str]) -> TargetTable:
        return replace(self, types=found)

    def on(self, left: str, right: str, names: Sequence[str] = ()) -> str:
        """Equality of keys. `names`: what the key's columns are called on the right, where that is otherwise."""
        if self.hashed:
            return f"{left}.{quote(HASH)} = {self.key_hash(f'{right}.', names)}"
        pairs = zip(self.key, names or self.key, strict=True)
        return " and ".join(f"{left}.{quote(name)} = {right}.{quote(other)}" for name, other in pairs)

    def key_hash(self, place: str = "", names: Sequence[str] = ()) -> str:
        """The expression that makes the hash of the key of a row."""
        pairs = zip(self.key, names or self.key, strict=True)
        parts = [_key_text(f"{place}{quote(other)}", self.types[name]) for name, other in pairs]
        return f"unhex(sha2(concat_ws(',', {', '.join(parts)}), 256))"


def origin(target: TargetTable, name: str) -> str:
    """Returns the stage column for a column of the key that a row came from. Its own name may be as long as names can be."""
    return f"{ORIGIN}{target.key.index(name)}"


def _key_text(column: str, kind: str) -> str:
    text = column if types.is_text(kind) or types.is_bytes(kind) else f"concat({column})"
    return f"ifnull(hex({text}), '-')"


def declared(target: TargetTable, kind: str) -> str:
    """Returns a type with the collation of texts."""
    if kind == types.UUID:
        return f"{kind} character set ascii collate ascii_bin"
    if kind == types.JSON or not types.is_text(kind):
        return kind
    return f"{kind} character set utf8mb4 collate {target.collation}"


def create_table(target: TargetTable) -> str:
    more = (target.position,) if target.versions else ()
    keyed = set() if target.hashed else set(target.key)
    parts = [
        f"{quote(column.name)} {declared(target, target.types[column.name])}"
        + (" not null" if column.name in keyed else "")
        for column in target.columns
    ]
    parts += [clause(column) for column in target.own]
    if target.position:
        parts.append(f"{quote(target.position)} {POSITION_TYPE}{' not null' if target.versions else ''}")
    if target.key and target.hashed:
        parts += [hash_column(target), f"unique key ({listed((HASH, *more))})"]
    elif target.key:
        parts.append(f"primary key ({listed((*target.key, *more))})")
    return (
        f"create table if not exists {target.name} ({', '.join(parts)})"
        f" engine = InnoDB default character set utf8mb4 collate {target.collation}"
    )


def hash_column(target: TargetTable) -> str:
    return f"{quote(HASH)} {_HASH_TYPE} generated always as ({target.key_hash()}) stored comment {literal(key_comment(target.key))}"


def key_comment(key: Sequence[str]) -> str:
    """Returns the comment of a hash's column, by which a reader finds the key."""
    return "key: " + ", ".join(quote(name) for name in key)


def select(place: tuple[str, str], names: Sequence[str], hides: str = "", shows: str = "") -> str:
    """The columns of all rows, but for those in which the column `hides` is true; with `shows` of those in which that one is."""
    where = f" where not coalesce({quote(hides)}, false)" if hides else ""
    where = f" where {quote(shows)}" if shows else where
    return f"select {listed(names)} from {quote(place[0])}.{quote(place[1])}{where}"


def newest(target: TargetTable, position: str) -> str:
    """The highest position in the column that now has them."""
    return f"select max({quote(position)}) from {target.name}"


def stage(target: TargetTable, name: str) -> list[str]:
    """A temporary table of the target's own types; `name` is SQL's."""
    columns = [(column, target.types[column]) for column in target.names]
    columns += [(POSITION, POSITION_TYPE), (KEPT, "varbinary(2048)"), (STAGE_KEY, _HASH_TYPE), (ORIGIN_KEY, _HASH_TYPE)]
    columns += [(origin(target, key), target.types[key]) for key in target.key]
    listed_ = ", ".join(f"{quote(column)} {staged_type(target, kind)} null" for column, kind in columns)
    listed_ += f", {quote(NUMBER)} bigint unsigned not null auto_increment primary key"
    return [
        f"drop temporary table if exists {name}",
        f"create temporary table {name} ({listed_}) engine = InnoDB default character set utf8mb4 collate {target.collation}",
    ]


def staged_type(target: TargetTable, kind: str) -> str:
    """JSON is checked when it goes into the table."""
    return declared(target, types.TEXT if kind == types.JSON else kind)


def drop_stage(name: str) -> str:
    return f"drop temporary table if exists {name}"


def _kept(bits: Mapping[str, int], name: str) -> str:
    return f"substr(s.{quote(KEPT)}, {bits[name] + 1}, 1) = '1'"


def value(bits: Mapping[str, int], name: str, other: str = "t") -> str:
    """The staged value of a column, or the one of row `other` where the change did not bring it."""
    if name not in bits:
        return f"s.{quote(name)}"
    return f"if({_kept(bits, name)}, {other}.{quote(name)}, s.{quote(name)})"


# -- rows that stay out -------------------------------------------------------------------------------------------------


def drop_buried(stage_name: str, place: TombstonePlace) -> str:
    """Takes rows behind a tombstone out of a stage."""
    return f"""delete s from {stage_name} s join {TOMBSTONES} b
        on {tombstones_of(place)} and b.`key` = s.{quote(STAGE_KEY)} where b.position >= s.{quote(POSITION)}"""


def drop_older(stage_name: str, floor: bytes) -> str:
    """Takes rows from before a TRUNCATE out of a stage."""
    return f"delete from {stage_name} where {quote(POSITION)} <= {binary(floor)}"


def orphans(target: TargetTable, stage_name: str) -> str:
    """Returns the query for the number of staged rows that keep columns of a row that does not exist."""
    return f"""select count(*) from {stage_name} s left join {target.name} t on {target.on("t", "s")}
        where s.{quote(KEPT)} is not null and {target.there} is null"""


# -- rows ---------------------------------------------------------------------------------------------------------------


def update(target: TargetTable, stage_name: str, bits: Mapping[str, int]) -> str:
    """Rows that are there and older. The stage is read, and each of its rows looks for its own."""
    plain = [name for name in target.names if name not in target.key]
    sets = [f"t.{quote(name)} = {value(bits, name)}" for name in plain]
    sets += [f"t.{quote(column.name)} = {column.value}" for column in target.stamps]
    position, staged = quote(target.position), quote(POSITION)
    return f"""update {stage_name} s straight_join {target.name} t on {target.on("t", "s")}
        set {", ".join([*sets, f"t.{position} = s.{staged}"])}
        where (t.{position} is null or t.{position} < s.{staged})"""


def insert(target: TargetTable, stage_name: str, bits: Mapping[str, int]) -> str:
    """Rows that are not there and that came whole."""
    names = listed([*target.names, target.position, *(column.name for column in target.stamps)])
    values = ", ".join([listed([*target.names, POSITION], "s."), *(column.value for column in target.stamps)])
    whole = f" and s.{quote(KEPT)} is null" if bits else ""
    return f"""insert into {target.name} ({names}) select {values} from {stage_name} s
        left join {target.name} t on {target.on("t", "s")} where {target.there} is null{whole}"""


def upsert(target: TargetTable, stage_name: str, bits: Mapping[str, int]) -> str:
    """Rows that came whole, into a table that refuses nothing but a second row of a key: those that are not there, and those that are newer
    than what is. The server finds a row's own by trying to insert it, and writes no rows down in between as an UPDATE of a join does.
    A row that stands in the way under another key, by an index that somebody has made since the table was looked at, is not taken for it:
    its position would be longer than a position can be, which is an error. The position is set last: what is set before is decided by it."""
    stamps = {column.name: column.value for column in target.stamps}
    names = [*target.names, *stamps, target.position]
    taken = ", ".join([listed(target.names, "s."), *stamps.values(), f"s.{quote(POSITION)}"])
    position = quote(target.position)
    newer = f"{target.name}.{position} is null or {target.name}.{position} < values({position})"
    sets = ", ".join(
        f"{target.name}.{quote(name)} = if({newer}, values({quote(name)}), {target.name}.{quote(name)})"
        for name in names[:-1]
        if name not in target.key
    )
    own = " and ".join(f"{target.name}.{quote(name)} <=> values({quote(name)})" for name in target.key)
    newest = f"if({newer}, values({position}), {target.name}.{position})"
    sets += f", {target.name}.{position} = if({own}, {newest}, repeat(values({position}), {_TOO_OFTEN}))"
    whole = f" where s.{quote(KEPT)} is null" if bits else ""
    return f"""insert into {target.name} ({listed(names)}) select {taken} from {stage_name} s{whole}
        on duplicate key update {sets}"""


def truncate(target: TargetTable, floor: bytes) -> str:
    """Rows without a position stood there before the sink came."""
    position = quote(target.position)
    older = f"{position} is null or {position} < {binary(floor)}"
    if target.soft and target.key:
        return f"update {target.name} set {_marks(target)} where {older}"
    return f"delete from {target.name} where {older}"


def delete(target: TargetTable, stage_name: str) -> str:
    position, staged = quote(target.position), quote(POSITION)
    older = f"(s.{staged} is null or t.{position} is null or t.{position} < s.{staged})"
    joined = f"{stage_name} s straight_join {target.name} t on {target.on('t', 's')}"
    if target.soft:
        return f"update {joined} set {_marks(target, 't.')}, t.{position} = coalesce(s.{staged}, t.{position}) where {older}"
    return f"delete t from {joined} where {older}"


def _marks(target: TargetTable, place: str = "") -> str:
    return ", ".join(
        f"{place}{quote(column.name)} = {'true' if column.name == DELETED else column.value}"
        for column in target.stamps
    )


# -- rows that change their key -----------------------------------------------------------------------------------------

TOMBSTONES: Final = "`_cdcworker`.tombstone"


def copy_origin_row(target: TargetTable, stage_name: str, bits: Mapping[str, int]) -> str:
    """Rows under a new key take what they did not bring from the row under the old key, where it still stands. What says which
    columns those are is set last."""
    sets = ", ".join(f"s.{quote(name)} = {value(bits, name, 'o')}" for name in bits)
    return f"""update {stage_name} s straight_join {target.name} o on {target.on("o", "s", [origin(target, name) for name in target.key])}
        set {sets}, s.{quote(KEPT)} = null
        where s.{quote(ORIGIN_KEY)} is not null and s.{quote(KEPT)} is not null
          and (o.{quote(target.position)} is null or o.{quote(target.position)} < s.{quote(POSITION)})"""


def copy_origin_tombstone(target: TargetTable, stage_name: str, bits: Mapping[str, int], place: TombstonePlace) -> str:
    """Returns the statement that copies missing columns from the tombstone of the old key. A row under that key is newer
    than the deleted one."""
    sets = ", ".join(
        f"s.{quote(name)} = if({_kept(bits, name)}, {_stored(target, name)}, s.{quote(name)})" for name in bits
    )
    return f"""update {stage_name} s straight_join {TOMBSTONES} b on {tombstones_of(place)} and b.`key` = s.{quote(ORIGIN_KEY)}
        set {sets}, s.{quote(KEPT)} = null
        where b.`row` is not null and b.position < s.{quote(POSITION)} and s.{quote(KEPT)} is not null"""


def row_name(column: str) -> str:
    """Returns the name under which a tombstone's row holds a column: JSON's paths need no quoting of it."""
    return "c" + column.encode().hex()


def _stored(target: TargetTable, name: str) -> str:
    text = f"nullif(json_unquote(json_extract(b.`row`, '$.{row_name(name)}')), '-')"
    return f"unhex({text})" if types.is_bytes(target.types[name]) else f"convert(unhex({text}) using utf8mb4)"


def _held(target: TargetTable, name: str, expression: str) -> str:
    kind = target.types[name]
    text = expression if types.is_text(kind) or types.is_bytes(kind) else f"cast({expression} as char)"
    return f"ifnull(hex({text}), '-')"


def insert_tombstones(stage_name: str, place: TombstonePlace) -> str:
    """Remember deletes, so that an older row of another partition does not bring the key back. The position is set last: what
    is set before is decided by it."""
    return f"""insert into {TOMBSTONES} (sink, topic, `key`, position)
        select {values_of(place)}, {quote(STAGE_KEY)}, {quote(POSITION)} from {stage_name} s
        where {quote(POSITION)} is not null
        on duplicate key update `row` = if(tombstone.position < values(position), null, tombstone.`row`),
          at = if(tombstone.position < values(position), now(6), tombstone.at),
          position = greatest(tombstone.position, values(position))"""


def insert_moved_tombstones(
    target: TargetTable, stage_name: str, bits: Mapping[str, int], place: TombstonePlace
) -> str:
    """Remember rows that leave for another key as they were: what is staged, else what the target holds."""
    pairs = ", ".join(f"'{row_name(name)}', {_held(target, name, value(bits, name))}" for name in target.names)
    return f"""insert into {TOMBSTONES} (sink, topic, `key`, position, `row`)
        select {values_of(place)}, s.{quote(STAGE_KEY)}, s.{quote(POSITION)}, json_object({pairs})
        from {stage_name} s left join {target.name} t on {target.on("t", "s")}
        where s.{quote(KEPT)} is null or {target.there} is not null
        on duplicate key update `row` = if(tombstone.position <= values(position), values(`row`), tombstone.`row`),
          at = if(tombstone.position <= values(position), now(6), tombstone.at),
          position = greatest(tombstone.position, values(position))"""
