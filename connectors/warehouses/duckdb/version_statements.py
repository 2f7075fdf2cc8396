"""The statements that bring versions of rows into DuckDB, from a stage table that has each version and each delete of a batch, and a
plan that says what becomes of them."""

from __future__ import annotations

from typing import Final

from cdcworker.connectors.api.table_batch import (
    BASE,
    BEGAN,
    IS_CURRENT,
    KEY,
    OP,
    POSITION,
    VALID_FROM,
    VALID_TO,
    VALID_TO_POSITION,
)
from cdcworker.connectors.warehouses.duckdb.connection import ROWS
from cdcworker.connectors.warehouses.duckdb.statements import (
    PLACE,
    TargetTable,
    binary,
    listed,
    literal,
    quote,
    replaced,
    tombstones_of,
    value,
    values_of,
)
from cdcworker.connectors.warehouses.row_versions.merge import PLACE_BYTES, READ
from cdcworker.connectors.warehouses.sql.target_table import KEPT, ORIGIN, STAGE_KEY, TombstonePlace
from cdcworker.connectors.warehouses.sql.versions import ENDS, GONE, KIND, NEW, REMEMBERED, VersionStageTables

FIRST: Final = "_cdc_first"
"""Stage column: whether the row is the one of its key that stands for it."""
UNNUMBERED: Final = 'temp."_cdc_unnumbered"'
_ENDS: Final = "_cdcworker.version_end"


def numbered(stage_name: str) -> str:
    """Makes the stage table of the rows as they came, one of each key marked."""
    first = f"row_number() over (partition by {quote(STAGE_KEY)}) = 1"
    return f"create or replace temp table {stage_name} as select *, {first} as {quote(FIRST)} from {UNNUMBERED}"


def plan(name: str) -> str:
    """Makes the table of what becomes of versions from the rows that it is executed with."""
    return f"create or replace temp table {name} as select * from {ROWS}"


# -- what is known ------------------------------------------------------------------------------------------------------


def _place(column: str) -> str:
    """The part of a position that says which change of which transaction it is of."""
    return f"substr(hex({column}), 1, {2 * PLACE_BYTES})"


def copy_kept(target: TargetTable, staged: VersionStageTables) -> str:
    position, end, base = quote(target.position), f"o.{quote(VALID_TO_POSITION)}", f"s.{quote(BASE)}"
    sets = ", ".join(f"{quote(name)} = {value(staged.bits, name, 'o')}" for name in staged.bits)
    newest = f"row_number() over (partition by n.rowid order by t.{position} desc)"
    return f"""update {staged.stage} s set {sets}, {quote(KEPT)} = null from (
            select t.*, n.rowid as {PLACE}, {newest} as _cdc_age from {staged.stage} n join {target.name} t
              on {target.on("t", "n", ORIGIN)} and t.{position} < n.{quote(BASE)} where n.{quote(KEPT)} is not null) o
        where o.{PLACE} = s.rowid and o._cdc_age = 1 and ({end} is null or {_place(end)} >= {_place(base)})"""


def rowless(staged: VersionStageTables) -> str:
    return f"select {quote(STAGE_KEY)}, {quote(POSITION)} from {staged.stage} where {quote(KEPT)} is not null"


def known_versions(target: TargetTable, staged: VersionStageTables) -> str:
    """From the first change of each key on, and the last one before that; of one that tells no position the last one of all."""
    position, began = quote(target.position), f"s.{quote(BEGAN)}"
    before = f"max(t.{position}) filter (where {began} is null or t.{position} < {began})"
    own = listed((VALID_FROM, VALID_TO, VALID_TO_POSITION), "t.")
    return f"""select key, position, {listed((VALID_FROM, VALID_TO, VALID_TO_POSITION))} from (
            select s.{quote(STAGE_KEY)} as key, t.{position} as position, {own},
              {before} over (partition by s.{quote(STAGE_KEY)}) as last
            from {staged.stage} s join {target.name} t on {target.on("t", "s")} where s.{quote(FIRST)})
        where last is null or position >= last"""


def known_ends(staged: VersionStageTables, place: TombstonePlace) -> str:
    return f"""select b.key, b.position, b.ended_at from {staged.stage} s join {_ENDS} b
          on {tombstones_of(place)} and b.key = s.{quote(STAGE_KEY)} where s.{quote(FIRST)}
        union all select b.key, b.position, b.ended_at from {_ENDS} b
          where {tombstones_of(place)} and octet_length(b.key) = 0"""


# -- what becomes of it -------------------------------------------------------------------------------------------------


def _planned(target: TargetTable, staged: VersionStageTables, kind: str) -> str:
    """Versions of the target `t` by a plan `p`; a staged row has the columns of the key."""
    return f"""{staged.plan} p join {staged.stage} s on s.{quote(STAGE_KEY)} = p.{quote(KEY)} and s.{quote(FIRST)}
        join {target.name} t on {target.on("t", "s")} and t.{quote(target.position)} = p.{quote(POSITION)}
        where p.{quote(KIND)} = {literal(kind)}"""


def _remembered(query: str) -> str:
    return f"""merge into {_ENDS} b using ({query}) n
        on b.sink = n.sink and b.topic = n.topic and b.key = n.key and b.position = n.position
        when not matched then insert (sink, topic, key, position, ended_at, written_at)
          values (n.sink, n.topic, n.key, n.position, n.ended_at, get_current_timestamp())"""


def remember(staged: VersionStageTables, place: TombstonePlace) -> str:
    return _remembered(
        f"""select distinct {values_of(place)}, p.{quote(KEY)} as key, p.{quote(POSITION)} as position,
              p.{quote(VALID_TO)} as ended_at from {staged.plan} p where p.{quote(KIND)} = {literal(REMEMBERED)}"""
    )


def end(target: TargetTable, staged: VersionStageTables) -> str:
    ended = f"p.{quote(VALID_TO_POSITION)}"
    marks = f"p.{quote(VALID_TO)} as {quote(VALID_TO)}, {ended} as {quote(VALID_TO_POSITION)}"
    marks += f", {ended} is null as {quote(IS_CURRENT)}"
    return replaced(target, f"select t.* replace ({marks}), t.rowid as {PLACE} from {_planned(target, staged, ENDS)}")


def insert(target: TargetTable, staged: VersionStageTables) -> str:
    own = (target.position, OP, VALID_FROM, VALID_TO, VALID_TO_POSITION, IS_CURRENT)
    names = listed([*target.names, *own, *(column.name for column in target.stamps)])
    values = listed([*target.names, POSITION, OP, VALID_FROM], "s.") + ", "
    values += listed((VALID_TO, VALID_TO_POSITION), "p.") + f", p.{quote(VALID_TO_POSITION)} is null"
    stamps = "".join(f", {column.value}" for column in target.stamps)
    return f"""insert into {target.name} ({names}) select {values}{stamps} from {staged.stage} s join {staged.plan} p
          on p.{quote(KEY)} = s.{quote(STAGE_KEY)} and p.{quote(POSITION)} = s.{quote(POSITION)}
        where p.{quote(KIND)} = {literal(NEW)} and s.{quote(OP)} is not null"""


def repeated(target: TargetTable, staged: VersionStageTables) -> str:
    position, ended, at = quote(target.position), f"o.{quote(VALID_TO_POSITION)}", f"s.{quote(POSITION)}"
    same = " and ".join(f"o.{quote(name)} is not distinct from t.{quote(name)}" for name in target.names)
    return f"""select s.{quote(STAGE_KEY)}, {at} from {staged.stage} s
        join {target.name} t on {target.on("t", "s")} and t.{position} = {at} and t.{quote(OP)} = {literal(READ)}
        join {target.name} o on {target.on("o", "s")} and {ended} = {at} and o.{position} < {ended} and {same}
        where s.{quote(OP)} = {literal(READ)}"""


def remove(target: TargetTable, staged: VersionStageTables) -> str:
    return f"delete from {target.name} where rowid in (select t.rowid from {_planned(target, staged, GONE)})"


# -- TRUNCATE -----------------------------------------------------------------------------------------------------------


def remember_truncate(place: TombstonePlace, at: bytes, moment_us: int) -> str:
    return _remembered(
        f"""select {values_of(place)}, {binary(b"")} as key, {binary(at)} as position,
              {_moment(moment_us)} as ended_at"""
    )


def _moment(moment_us: int) -> str:
    return f"(timestamptz '1970-01-01 00:00:00+00' + to_microseconds({moment_us}))"


def truncate(target: TargetTable, at: bytes, moment_us: int) -> str:
    ended = f"t.{quote(VALID_TO_POSITION)}"
    marks = f"{_moment(moment_us)} as {quote(VALID_TO)}, {binary(at)} as {quote(VALID_TO_POSITION)}"
    marks += f", false as {quote(IS_CURRENT)}"
    return replaced(
        target,
        f"""select t.* replace ({marks}), t.rowid as {PLACE} from {target.name} t
            where t.{quote(target.position)} < {binary(at)} and ({ended} is null or {ended} > {binary(at)})""",
    )
