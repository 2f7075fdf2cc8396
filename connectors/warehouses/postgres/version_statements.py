"""The statements that bring versions of rows into PostgreSQL, from a stage table that has each version and each delete of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from cdcworker.connectors.api.table_batch import (
    BASE,
    BEGAN,
    IS_CURRENT,
    OP,
    POSITION,
    VALID_FROM,
    VALID_TO,
    VALID_TO_POSITION,
)
from cdcworker.connectors.warehouses.postgres.statements import (
    TargetTable,
    binary,
    listed,
    quote,
    tombstones_of,
    value,
    values_of,
)
from cdcworker.connectors.warehouses.row_versions.merge import PLACE_BYTES
from cdcworker.connectors.warehouses.sql.target_table import KEPT, ORIGIN, STAGE_KEY, TombstonePlace

LATE: Final = "_cdc_late"
"""Stage column: the key has a version or an end in the target that is not older than its first change of the batch."""
SAME: Final = "_cdc_same"
"""Stage column: the position of the version that a row of a snapshot repeats."""
ROW: Final = "_cdc_row"
"""The place of a stage table's row, where it stands beside columns of the source."""
SEEN: Final = "_cdc_seen"
"""Stage column: the row of a snapshot has been compared."""
_OWN: Final = (
    *((name, "bytea") for name in (POSITION, KEPT, STAGE_KEY, BASE, BEGAN, VALID_TO_POSITION, SAME)),
    *((name, "timestamp with time zone") for name in (VALID_FROM, VALID_TO)),
    (OP, "text"),
    *((name, "boolean") for name in (LATE, SEEN)),
)
_IS_PUT: Final = f"s.{quote(OP)} is not null"
_FIRST: Final = f"s.{quote(POSITION)} = s.{quote(BEGAN)}"


def create_index(target: TargetTable) -> str:
    """A key has one current version at most."""
    nulls = " nulls not distinct" if target.optional_key else ""
    return f"create unique index on {target.name} ({listed(target.key)}){nulls} where {quote(IS_CURRENT)}"


def stage(target: TargetTable, name: str) -> list[str]:
    """The statements that create the session's stage table `name`, in SQL, of the target's own types."""
    own = "".join(f", null::{kind} as {quote(column)}" for column, kind in _OWN)
    origins = "".join(f", null::{target.types[key]} as {quote(ORIGIN + key)}" for key in target.key)
    return [
        f"drop table if exists pg_temp.{name}",
        f"""create temp table {name} on commit delete rows as select {listed(target.names)}{own}{origins}
            from {target.name} with no data""",
    ]


def copy_kept(target: TargetTable, stage_name: str, bits: Mapping[str, int]) -> str:
    """Versions take the columns that their change left out from the version that it was made on."""
    sets = ", ".join(f"{quote(name)} = {value(bits, name, 'o')}" for name in bits)
    position, end = quote(target.position), quote(VALID_TO_POSITION)
    return f"""update {stage_name} s set {sets}, {quote(KEPT)} = null
        from (select n.ctid as {ROW}, o.* from {stage_name} n cross join lateral (
            select * from {target.name} t where {target.on("t", "n", ORIGIN)} and t.{position} < n.{quote(BASE)}
            order by t.{position} desc limit 1) o
          where n.{quote(KEPT)} is not null and (o.{end} is null
            or substring(o.{end}, 1, {PLACE_BYTES}) >= substring(n.{quote(BASE)}, 1, {PLACE_BYTES}))) o
        where s.ctid = o.{ROW}"""


def take_rowless(stage_name: str) -> str:
    """Takes versions out that keep columns of a row that is not there. Other changes of their keys are told apart one by one."""
    return f"""with gone as (delete from {stage_name} s where s.{quote(KEPT)} is not null returning s.{quote(STAGE_KEY)} as key),
        marked as (update {stage_name} s set {quote(LATE)} = true from gone
          where s.{quote(STAGE_KEY)} = gone.key and s.{quote(KEPT)} is null)
        select count(*) from gone"""


def mark_late(target: TargetTable, stage_name: str, place: TombstonePlace, newest: bytes) -> str:
    """`newest`: no version of the target is behind it. A delete may have come behind its tombstone, which has ended the version."""
    position, first = quote(target.position), f"s.{quote(POSITION)}"
    return f"""update {stage_name} n set {quote(LATE)} = true from (
          select s.{quote(STAGE_KEY)} as key from {stage_name} s left join lateral (
            select t.{position} as began, t.{quote(VALID_TO_POSITION)} as ended from {target.name} t
            where {target.on("t", "s")} order by t.{position} desc limit 1) l on true
          where {_FIRST} and ({first} <= {binary(newest)} or not ({_IS_PUT}))
            and (l.began >= {first} or l.ended >= {first} or l.ended = l.began or exists (
            select from _cdcworker.version_end b where {tombstones_of(place)}
              and b.key in (s.{quote(STAGE_KEY)}, '') and b.position >= {first}))) late
        where n.{quote(STAGE_KEY)} = late.key"""


def has_late(stage_name: str) -> str:
    return f"select exists (select from {stage_name} where {quote(LATE)})"


def end_current(target: TargetTable, stage_name: str) -> str:
    """The first change of a key ends its current version."""
    sets = _ended(f"s.{quote(VALID_FROM)}", f"s.{quote(POSITION)}")
    return f"""update {target.name} t set {sets} from {stage_name} s
        where {target.on("t", "s")} and t.{quote(IS_CURRENT)} and {_FIRST} and s.{quote(LATE)} is null"""


def remember_deletes(stage_name: str, place: TombstonePlace) -> str:
    """What a delete ends may come yet."""
    return f"""insert into _cdcworker.version_end (sink, topic, key, position, ended_at)
        select {values_of(place)}, s.{quote(STAGE_KEY)}, s.{quote(POSITION)}, s.{quote(VALID_FROM)} from {stage_name} s
        where not ({_IS_PUT}) on conflict do nothing"""


def _ended(at: str, position: str) -> str:
    return (
        f"{quote(VALID_TO)} = {at}, {quote(VALID_TO_POSITION)} = {position}, {quote(IS_CURRENT)} = {position} is null"
    )


def insert(target: TargetTable, stage_name: str) -> str:
    return _insert(
        target,
        f"s.{quote(VALID_TO)}, s.{quote(VALID_TO_POSITION)}, s.{quote(VALID_TO_POSITION)} is null",
        f"{stage_name} s where {_IS_PUT} and s.{quote(LATE)} is null",
    )


def _insert(target: TargetTable, ends: str, source: str) -> str:
    own = (target.position, OP, VALID_FROM, VALID_TO, VALID_TO_POSITION, IS_CURRENT)
    names = listed([*target.names, *own, *(column.name for column in target.stamps)])
    staged = listed([*target.names, POSITION, OP, VALID_FROM], "s.")
    stamps = "".join(f", {column.value}" for column in target.stamps)
    return f"insert into {target.name} ({names}) select {staged}, {ends}{stamps} from {source}"


# -- changes that come late ---------------------------------------------------------------------------------------------


def _changes_of_late_keys(target: TargetTable, stage_name: str, place: TombstonePlace) -> str:
    """All that is known of their keys: (key, position, at, is_put), more than once where it is known from several."""
    position, end, key = quote(target.position), quote(VALID_TO_POSITION), quote(STAGE_KEY)
    there = f"from late_key k join {target.name} t on {target.on('t', 'k')}"
    return f"""late_key as (select distinct on (s.{key}) {listed(target.key, "s.")}, s.{key}
          from {stage_name} s where s.{quote(LATE)}),
        told as (
          select s.{key} as key, s.{quote(POSITION)} as position, s.{quote(VALID_FROM)} as at, {_IS_PUT} as is_put
            from {stage_name} s where s.{quote(LATE)}
          union all select k.{key}, t.{position}, t.{quote(VALID_FROM)}, true {there}
          union all select k.{key}, t.{end}, t.{quote(VALID_TO)}, false {there}
            where t.{end} is not null and t.{end} <> t.{position}
          union all select k.{key}, b.position, b.ended_at, false
            from late_key k join _cdcworker.version_end b on {tombstones_of(place)} and b.key in (k.{key}, '')),
        change as (select distinct on (key, position) key, position, at, is_put from told
          order by key, position, is_put desc),
        version as (select key, position, is_put, lead(position) over later as ended, lead(at) over later as ended_at,
            not lead(is_put) over later as is_deleted from change window later as (partition by key order by position))"""


def remember_ends(target: TargetTable, stage_name: str, place: TombstonePlace) -> str:
    """What has ended versions of late keys stays known where another change comes between."""
    return f"""with {_changes_of_late_keys(target, stage_name, place)}
        insert into _cdcworker.version_end (sink, topic, key, position, ended_at)
        select {values_of(place)}, key, position, at from change where not is_put on conflict do nothing"""


def end_again(target: TargetTable, stage_name: str, place: TombstonePlace) -> str:
    """Versions of late keys end where the next change of the key is. One that a tombstone without a position has ended goes on
    when it comes again: so will that tombstone, if it was not one of an older delete. It ends with a next version that is not there
    yet, which the tombstone has passed; one that is there came behind the tombstone."""
    position, end = quote(target.position), quote(VALID_TO_POSITION)
    return f"""with {_changes_of_late_keys(target, stage_name, place)}
        update {target.name} t set {_ended("v.ended_at", "v.ended")} from version v join late_key k on k.{quote(STAGE_KEY)} = v.key
        where {target.on("t", "k")} and t.{position} = v.position and v.is_put and t.{end} is distinct from v.ended
          and (t.{end} is distinct from t.{position} or v.is_deleted or v.ended is null and exists (select from {stage_name} s
            where s.{quote(STAGE_KEY)} = v.key and s.{quote(POSITION)} = v.position)
            or v.ended is not null and not exists (select from {target.name} f
              where {target.on("f", "k")} and f.{position} = v.ended))"""


def insert_late(target: TargetTable, stage_name: str, place: TombstonePlace) -> str:
    """Versions that are there stay."""
    source = f"""{stage_name} s join version v on v.key = s.{quote(STAGE_KEY)} and v.position = s.{quote(POSITION)}
        where {_IS_PUT} and s.{quote(LATE)} on conflict do nothing"""
    text = _insert(target, "v.ended_at, v.ended, v.ended is null", source)
    return f"with {_changes_of_late_keys(target, stage_name, place)} {text}"


# -- TRUNCATE, tombstones, snapshots ------------------------------------------------------------------------------------


def remember_truncate(place: TombstonePlace, position: bytes) -> str:
    """With a parameter: its time."""
    return f"""insert into _cdcworker.version_end (sink, topic, key, position, ended_at)
        values ({values_of(place).replace("%", "%%")}, '', {binary(position)}, %s) on conflict do nothing"""


def truncate(target: TargetTable, place: TombstonePlace, position: bytes) -> str:
    """Ends every version that was current then; with the time that `remember_truncate` has stored."""
    end, at = quote(VALID_TO_POSITION), binary(position)
    return f"""update {target.name} t set {_ended("b.ended_at", "b.position")} from _cdcworker.version_end b
        where {tombstones_of(place)} and b.key = '' and b.position = {at} and t.{quote(target.position)} < {at} and (t.{end} is null or t.{end} > {at})"""


def end_without_position(target: TargetTable, stage_name: str) -> str:
    """A tombstone without its delete tells no position and no time: the version ends when the sink reads it."""
    return f"""update {target.name} t set {_ended("now()", "t." + quote(target.position))}
        from {stage_name} s where {target.on("t", "s")} and t.{quote(IS_CURRENT)}"""


def compare_read(target: TargetTable, stage_name: str) -> str:
    """Compares the next row of a snapshot of each key, in the order of positions, with the version before it."""
    position, end = quote(target.position), quote(VALID_TO_POSITION)
    same = " and ".join(f"p.{quote(name)}::text is not distinct from r.{quote(name)}::text" for name in target.names)
    return f"""update {stage_name} s set {quote(SEEN)} = true, {quote(SAME)} = p.{position},
          {quote(VALID_TO)} = r.{quote(VALID_TO)}, {quote(VALID_TO_POSITION)} = r.{end}
        from (select distinct on (n.{quote(STAGE_KEY)}) n.*, n.ctid as {ROW} from {stage_name} n
            where n.{quote(OP)} = 'r' and n.{quote(SEEN)} is null order by n.{quote(STAGE_KEY)}, n.{quote(POSITION)}) n
          left join {target.name} r on {target.on("r", "n")} and r.{position} = n.{quote(POSITION)} and r.{quote(OP)} = 'r'
          left join {target.name} p on {target.on("p", "n")} and p.{end} = n.{quote(POSITION)} and p.{position} < p.{end}
            and {same}
        where s.ctid = n.{ROW}"""


def drop_repeated(target: TargetTable, stage_name: str) -> Sequence[str]:
    """A row of a snapshot that says what the version before it says makes none: that one goes on."""
    position, same = quote(target.position), f"s.{quote(SAME)}"
    on = f"{same} is not null and {target.on('t', 's')}"
    return (
        f"delete from {target.name} t using {stage_name} s where {on} and t.{position} = s.{quote(POSITION)}",
        f"""update {target.name} t set {_ended("s." + quote(VALID_TO), "s." + quote(VALID_TO_POSITION))}
            from {stage_name} s where {on} and t.{position} = {same}""",
        f"update {stage_name} s set {quote(SAME)} = null where {same} is not null",
    )
