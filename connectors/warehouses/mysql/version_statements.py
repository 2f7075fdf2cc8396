"""The statements that bring versions of rows into MySQL, from a stage table that has each version and each delete of a batch, and a plan
that says what becomes of them."""

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
from cdcworker.connectors.warehouses.mysql import types
from cdcworker.connectors.warehouses.mysql.statements import (
    NUMBER,
    POSITION_TYPE,
    TargetTable,
    binary,
    listed,
    origin,
    quote,
    staged_type,
    tombstones_of,
    value,
    values_of,
)
from cdcworker.connectors.warehouses.row_versions.merge import PLACE_BYTES, READ
from cdcworker.connectors.warehouses.sql.target_table import KEPT, STAGE_KEY, TombstonePlace
from cdcworker.connectors.warehouses.sql.versions import ENDS, GONE, KIND, NEW, REMEMBERED, VersionStageTables

VERSIONS: Final = "v"
"""The kind of stage tables that hold versions and deletes."""
PLAN: Final = "p"
"""The kind of those that say what becomes of versions."""
FIRST: Final = "_cdc_first"
"""Stage column: set in one row of each key."""
MOMENT: Final = "datetime(6)"
TABLE: Final = "version_end"
ALL_KEYS: Final = bytes(32)
"""The key of a TRUNCATE among remembered ends, which is the hash of none."""
DEFINITION: Final = f"""{TABLE} (sink varchar(255) not null, topic varchar(255) not null, `key` binary(32) not null,
    position varbinary(16) not null, ended_at {MOMENT} not null, at {MOMENT} not null default current_timestamp(6),
    primary key (sink, topic, `key`, position))"""
"""Of the table with each delete and each TRUNCATE, which sinks that keep versions have."""
_HASH: Final = "binary(32)"
_ENDS: Final = f"`_cdcworker`.{TABLE}"


def stage(target: TargetTable, name: str) -> list[str]:
    """The statements that create the session's stage table `name`, in SQL, of the target's own types."""
    columns = [(column, target.types[column]) for column in target.names]
    columns += [(column, POSITION_TYPE) for column in (POSITION, BASE, BEGAN)]
    columns += [(KEPT, "varbinary(2048)"), (STAGE_KEY, _HASH), (VALID_FROM, MOMENT)]
    columns += [(OP, "varchar(8)"), (FIRST, "varchar(1)")]
    columns += [(origin(target, key), target.types[key]) for key in target.key]
    listed_ = ", ".join(f"{quote(column)} {staged_type(target, kind)} null" for column, kind in columns)
    return _create(target, name, listed_, f"key ({quote(STAGE_KEY)})")


def plan(target: TargetTable, name: str) -> list[str]:
    """Those that create the one of plans."""
    columns = [(KEY, _HASH), (POSITION, POSITION_TYPE), (VALID_TO_POSITION, POSITION_TYPE), (VALID_TO, MOMENT)]
    columns += [(KIND, "varchar(16)")]
    listed_ = ", ".join(f"{quote(column)} {kind} null" for column, kind in columns)
    return _create(target, name, listed_, f"key ({quote(KEY)}, {quote(POSITION)})")


def _create(target: TargetTable, name: str, columns: str, index: str) -> list[str]:
    columns += f", {quote(NUMBER)} bigint unsigned not null auto_increment primary key, {index}"
    form = f"engine = InnoDB default character set utf8mb4 collate {target.collation}"
    return [f"drop temporary table if exists {name}", f"create temporary table {name} ({columns}) {form}"]


# -- what is known ------------------------------------------------------------------------------------------------------


def copy_kept(target: TargetTable, staged: VersionStageTables) -> str:
    names = [origin(target, name) for name in target.key]
    sets = ", ".join(f"s.{quote(name)} = {value(staged.bits, name, 'o')}" for name in staged.bits)
    position, end = quote(target.position), quote(VALID_TO_POSITION)
    place = f"substr({{}}, 1, {PLACE_BYTES})"
    return f"""update {staged.stage} s straight_join {target.name} o on {target.on("o", "s", names)} and o.{position} = (
            select max(t.{position}) from {target.name} t where {target.on("t", "s", names)} and t.{position} < s.{quote(BASE)})
        set {sets}, s.{quote(KEPT)} = null
        where s.{quote(KEPT)} is not null
          and (o.{end} is null or {place.format(f"o.{end}")} >= {place.format(f"s.{quote(BASE)}")})"""


def rowless(staged: VersionStageTables) -> str:
    return f"select {quote(STAGE_KEY)}, {quote(POSITION)} from {staged.stage} where {quote(KEPT)} is not null"


def known_versions(target: TargetTable, staged: VersionStageTables) -> str:
    """From the first change of each key on, and the last one before that; of one that tells no position the last one of all."""
    position, began = quote(target.position), f"s.{quote(BEGAN)}"
    return f"""select s.{quote(STAGE_KEY)}, t.{position}, {listed((VALID_FROM, VALID_TO, VALID_TO_POSITION), "t.")}
        from {staged.stage} s straight_join {target.name} t on {target.on("t", "s")} and t.{position} >= coalesce((
            select max(x.{position}) from {target.name} x
            where {target.on("x", "s")} and ({began} is null or x.{position} < {began})), x'')
        where s.{quote(FIRST)} is not null"""


def known_ends(staged: VersionStageTables, place: TombstonePlace) -> str:
    return f"""select b.`key`, b.position, b.ended_at from {staged.stage} s straight_join {_ENDS} b
          on {tombstones_of(place)} and b.`key` = s.{quote(STAGE_KEY)} where s.{quote(FIRST)} is not null
        union all select x'', b.position, b.ended_at from {_ENDS} b
          where {tombstones_of(place)} and b.`key` = {binary(ALL_KEYS)}"""


# -- what becomes of it -------------------------------------------------------------------------------------------------


def _planned(target: TargetTable, staged: VersionStageTables) -> str:
    """Versions of the target `t` by a plan `p`; a staged row has the columns of the key."""
    return f"""{staged.plan} p straight_join {staged.stage} s on s.{quote(STAGE_KEY)} = p.{quote(KEY)} and s.{quote(FIRST)} is not null
        straight_join {target.name} t on {target.on("t", "s")} and t.{quote(target.position)} = p.{quote(POSITION)}"""


def _is(kind: str) -> str:
    return f"p.{quote(KIND)} = '{kind}'"


def remember(staged: VersionStageTables, place: TombstonePlace) -> str:
    return f"""insert ignore into {_ENDS} (sink, topic, `key`, position, ended_at)
        select {values_of(place)}, {listed((KEY, POSITION, VALID_TO), "p.")} from {staged.plan} p where {_is(REMEMBERED)}"""


def end(target: TargetTable, staged: VersionStageTables) -> str:
    ended = f"p.{quote(VALID_TO_POSITION)}"
    return f"""update {_planned(target, staged)} set t.{quote(VALID_TO)} = p.{quote(VALID_TO)},
          t.{quote(VALID_TO_POSITION)} = {ended}, t.{quote(IS_CURRENT)} = ({ended} is null) where {_is(ENDS)}"""


def insert(target: TargetTable, staged: VersionStageTables) -> str:
    own = (target.position, OP, VALID_FROM, VALID_TO, VALID_TO_POSITION, IS_CURRENT)
    names = listed([*target.names, *own, *(column.name for column in target.stamps)])
    values = listed([*target.names, POSITION, OP, VALID_FROM], "s.") + ", "
    values += listed((VALID_TO, VALID_TO_POSITION), "p.") + f", p.{quote(VALID_TO_POSITION)} is null"
    stamps = "".join(f", {column.value}" for column in target.stamps)
    return f"""insert into {target.name} ({names}) select {values}{stamps} from {staged.stage} s straight_join {staged.plan} p
          on p.{quote(KEY)} = s.{quote(STAGE_KEY)} and p.{quote(POSITION)} = s.{quote(POSITION)}
        where {_is(NEW)} and s.{quote(OP)} is not null"""


def repeated(target: TargetTable, staged: VersionStageTables) -> str:
    position, ended, at = quote(target.position), f"o.{quote(VALID_TO_POSITION)}", f"s.{quote(POSITION)}"
    same = " and ".join(f"{_told(target, 'o', name)} <=> {_told(target, 't', name)}" for name in target.names)
    return f"""select s.{quote(STAGE_KEY)}, {at} from {staged.stage} s
        straight_join {target.name} t on {target.on("t", "s")} and t.{position} = {at} and t.{quote(OP)} = '{READ}'
        straight_join {target.name} o on {target.on("o", "s")} and {ended} = {at} and o.{position} < {ended} and {same}
        where s.{quote(OP)} = '{READ}'"""


def _told(target: TargetTable, row: str, name: str) -> str:
    """Documents are compared as texts: servers take different ones for one."""
    column = f"{row}.{quote(name)}"
    return f"cast({column} as char)" if target.types[name] == types.JSON else column


def remove(target: TargetTable, staged: VersionStageTables) -> str:
    return f"delete t from {_planned(target, staged)} where {_is(GONE)}"


# -- TRUNCATE -----------------------------------------------------------------------------------------------------------


def _moment(moment_us: int) -> str:
    return f"timestamp'1970-01-01 00:00:00' + interval {moment_us} microsecond"


def remember_truncate(place: TombstonePlace, at: bytes, moment_us: int) -> str:
    return f"""insert ignore into {_ENDS} (sink, topic, `key`, position, ended_at)
        values ({values_of(place)}, {binary(ALL_KEYS)}, {binary(at)}, {_moment(moment_us)})"""


def truncate(target: TargetTable, at: bytes, moment_us: int) -> str:
    ended = f"t.{quote(VALID_TO_POSITION)}"
    return f"""update {target.name} t set t.{quote(VALID_TO)} = {_moment(moment_us)}, {ended} = {binary(at)},
          t.{quote(IS_CURRENT)} = false
        where t.{quote(target.position)} < {binary(at)} and ({ended} is null or {ended} > {binary(at)})"""
