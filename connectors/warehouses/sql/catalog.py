"""What a batch makes of its table: where the table is, its columns, and how those that are there follow the source's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from cdcworker.connectors.api.table_batch import DELETED, POSITION, UNCHANGED, TableBatch
from cdcworker.connectors.arrow.decode import DecodePlan, arrow_type
from cdcworker.connectors.sink_errors import TARGET_COLLISION, TARGET_RESERVED
from cdcworker.connectors.warehouses import schema_policy, target_columns
from cdcworker.connectors.warehouses.column_changes import ColumnNaming, TargetTableColumn, not_renamed, plan
from cdcworker.connectors.warehouses.source_types import TargetColumn
from cdcworker.connectors.warehouses.sql.dropped_columns import SettledColumns
from cdcworker.connectors.warehouses.sql.target_table import OwnColumn, SqlTable
from cdcworker.connectors.warehouses.target_columns import OutputForm, missing_key, named
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.topics import unescape

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T", bound=SqlTable)

POSITION_ID: Final = int(target_columns.POSITION_ID)
"""Beside the numbers that the source gives to its columns."""
_PLAIN: Final = DecodePlan({"type": "record", "name": "r", "fields": []})


@contextlib.contextmanager
def of_topic(batch: TableBatch) -> Iterator[None]:
    """Errors name the topic, by which a table is known."""
    try:
        yield
    except CdcError as exc:
        where = {"topic": batch.table, **(exc.where or {})}
        raise CdcError(exc.code, exc.message, where=where, hint=exc.hint) from exc


# -- the table ----------------------------------------------------------------------------------------------------------


def target_place(batch: TableBatch, schema: str) -> tuple[str, str]:
    """Returns schema and table of a batch. `schema`: that of all tables; empty: as in the source."""
    parts = batch.path or tuple(batch.table.split(".")[-2:])
    return schema or (parts[-2] if len(parts) > 1 else "public"), parts[-1]


def reserved(place: tuple[str, str], topic: str) -> CdcError:
    """Returns the error of a schema that holds our own bookkeeping, which a source that is a warehouse too may have as tables, or
    the server's."""
    where = {"table": ".".join(place), "topic": topic}
    return CdcError(TARGET_RESERVED, "the topic's target schema is not for data", where=where)


def own_place(
    owners: MutableMapping[tuple[str, str], str], name: tuple[str, str], place: tuple[str, str], topic: str
) -> None:
    """Makes a table one topic's, by the `name` by which the server tells tables apart. CdcError where it is another's."""
    if owners.setdefault(name, topic) != topic:
        where = {"table": ".".join(place), "topic": topic}
        raise CdcError(TARGET_COLLISION, "two topics write to one table", where=where)


# -- its columns --------------------------------------------------------------------------------------------------------


def columns_of(batch: TableBatch) -> tuple[TargetColumn, ...]:
    """Returns the columns of a batch, those of its key among them that its rows do not have."""
    columns = tuple(named(member) for member in batch.schema["fields"])
    present = {column.field for column in columns}
    return columns + tuple(missing_key(name, batch) for name in batch.key if name not in present)


def key_of(batch: TableBatch) -> tuple[str, ...]:
    """Returns the names of the key's columns in the target."""
    return tuple(unescape(name) for name in batch.key)


def optional_key(batch: TableBatch) -> frozenset[str]:
    """Returns those columns of the key that may be null in the source."""
    fields: Iterable[Mapping[str, Any]] = batch.schema["fields"]
    nullable = {unescape(str(member["name"])) for member in fields if isinstance(member["type"], list)}
    return frozenset(nullable.intersection(key_of(batch)))


@dataclass(frozen=True, slots=True)
class OwnTypes:
    """A server's types of the sink's own columns, and its expression for the time at which a row is written."""

    text: str
    boolean: str
    moment: str
    now: str


def own_columns(output: OutputForm, types: OwnTypes, keyed: bool) -> list[OwnColumn]:
    """Returns the columns that the sink adds at the end of a table, besides the position."""
    out = [OwnColumn(UNCHANGED, types.text)] if output.log else []
    if output.soft and keyed:
        out.append(OwnColumn(DELETED, types.boolean, "false"))
    if output.synced:
        out.append(OwnColumn(output.synced, types.moment, types.now))
    return out


def default_value(column: TargetColumn) -> pa.Array | None:
    """Returns the source's default of a column as an array of one value: rows that stand already got it without an event, and so do
    rows of the older shape. None: it has none."""
    import pyarrow as pa

    if column.default is None:
        return None
    raw = column.default.encode("latin-1") if column.kind in ("decimal", "bytes", "bits") else column.default
    return pa.array([raw], arrow_type(column.avro, _PLAIN))


# -- columns follow the source's ----------------------------------------------------------------------------------------


def position_name(columns: Collection[str], known: Mapping[int, str], default: str) -> str:
    """Returns the name of a table's column of positions: as it is, where there is one, else as it is to be."""
    names = (known.get(POSITION_ID, ""), POSITION)
    return next((name for name in names if name in columns), default)


def source_identities(batch: TableBatch, position: str) -> dict[str, int]:
    """Returns the source's identities of a batch's columns, with that of the column of positions."""
    fields: Iterable[Mapping[str, Any]] = batch.schema["fields"]
    ids = {unescape(str(member["name"])): int(member["cdc.colid"]) for member in fields if member.get("cdc.colid")}
    return ids | ({position: POSITION_ID} if position else {})


def table_identities(columns: Collection[str], known: Mapping[int, str], ids: Mapping[str, int]) -> dict[str, int]:
    """Returns the identities of the columns that are there, by what is `known` of the table and the batch's `ids`."""
    # Of several that are said to be one column it is the one that the source has under its name, or the newest.
    order = sorted(known.items(), key=lambda pair: (ids.get(pair[1]) == pair[0], pair[0]))
    out = {name: id for id, name in order if name in columns}
    if POSITION_ID not in out.values() and POSITION in columns:
        out[POSITION] = POSITION_ID
    return out


@dataclass(frozen=True, slots=True)
class FollowedColumns(Generic[T]):
    """How a table follows a batch. `target` takes of the batch what the table has not dropped; `identities` are those of the columns
    that are there, by name, and `names` are their names then. `settled`: whether that holds for every batch in this shape."""

    target: T
    planned: ColumnNaming
    identities: Mapping[str, int]
    names: Mapping[int, str]
    deleted: tuple[str, ...]
    settled: bool


def followed(
    target: T,
    columns: Collection[str],
    known: Mapping[int, str],
    batch: TableBatch,
    output: OutputForm,
    settle: Callable[[ColumnNaming], SettledColumns],
) -> FollowedColumns[T]:
    """A column that the source calls otherwise now is called so here too, by the source's identity of it; and one that the
    source dropped makes room for another one of its name, or goes, as `settle` says. `columns` are those that are there, `known`
    their names by identity. CdcError where the table cannot follow, or may not."""
    where = {"table": target.plain_name}
    ids = source_identities(batch, target.position)
    there = table_identities(columns, known, ids)
    have = [TargetTableColumn(name, there.get(name)) for name in columns]
    position = (target.position,) if target.position else ()
    asked = [TargetTableColumn(name, ids.get(name)) for name in (*target.names, *position)]
    own = {target.position, POSITION, *(column.name for column in target.own)}
    not_renamed(known, [c for c in have if c.name not in own], [c for c in asked if c.name not in own], where)
    planned, settled = plan(have, asked, target.key, where), SettledColumns()
    if output.deletes(target.key):
        settled = settle(planned)
        have = [column for column in have if column.name not in settled.deleted]
        asked = [column for column in asked if column.name not in settled.late]
        target = replace(target, columns=tuple(c for c in target.columns if c.name not in settled.late))
        planned = plan(have, asked, target.key, where)
    schema_policy.judge(output.follows, planned, output.own, where)
    names = {id: planned.names[name] for name, id in there.items() if name in planned.names}
    taken = {column.name for column in asked}
    names |= {id: name for name, id in ids.items() if name in taken}
    return FollowedColumns(target, planned, there, names, settled.deleted, settled.settled)
