"""From RELATION messages to `Table` and a plan of parsers: how the rows of one table are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any

from cdcworker.connectors.capture.column_mapping import MappedType, Parser
from cdcworker.connectors.capture.config.column_masks import ColumnMasks
from cdcworker.connectors.capture.config.filters import TableFilters
from cdcworker.connectors.capture.config.message_keys import MessageKeys
from cdcworker.connectors.capture.config.propagated_types import PropagatedTypes
from cdcworker.connectors.capture.source_template import template_of
from cdcworker.connectors.capture.tables.last_known_keys import Key, LastKnownKeys
from cdcworker.connectors.postgres.config.settings import PostgresSettings
from cdcworker.connectors.postgres.errors import CAPTURE, TYPE_REFUSED
from cdcworker.connectors.postgres.pgoutput import Relation, RelationColumn
from cdcworker.connectors.postgres.server.catalog import SourceCatalog, TableInfo, TypeNames, constant_default
from cdcworker.connectors.postgres.source_block import SOURCE_SCHEMA
from cdcworker.connectors.postgres.transport.admin_connection import AdminConnection
from cdcworker.connectors.postgres.transport.server_encoding import checked, is_lacking
from cdcworker.connectors.postgres.types.bounded_values import bound_of
from cdcworker.connectors.postgres.types.extension_records import INT16_MAX
from cdcworker.connectors.postgres.types.mapping import HandlingModes, PgType, TypeRegistry, is_known, map_type
from cdcworker.connectors.postgres.types.type_parameters import type_parameters
from cdcworker.schemas.change import NO_DEFAULT, Column, Table
from cdcworker.schemas.errors import CdcError

CONNECTOR = "postgresql"
MISFIT = 0
"""In `Plan.stale`: a composite has fields that its type, as it is known, has not, or lacks some of them."""


def message_table(binary: str = "bytes") -> Table:
    """The shape of logical messages; `binary`: the `binary.handling.mode`, which is that of their content."""
    content = "bytes" if binary == "bytes" else "string"
    return Table(
        path=("message",),
        table_id=0,
        columns=(Column("prefix", "string"), Column("content", content)),
        key=(0,),
        source_schema=SOURCE_SCHEMA,
    )


MESSAGE_TABLE = message_table()


def source_template(prefix: str, dbname: str) -> dict[str, Any]:
    """All fields of `source`, in order; a transaction and an event fill in theirs."""
    return template_of(SOURCE_SCHEMA, connector=CONNECTOR, name=prefix, db=dbname)


@dataclass(frozen=True, slots=True)
class TableDecodePlan:
    """How one table's rows are read while one RELATION message is in force."""

    relation: Relation
    table: Table
    parsers: tuple[Parser | None, ...]
    """By column of the relation; None for a column that is left out."""
    whole: bool
    """Every column is taken, so that the fast reader may be used."""
    required: tuple[int, ...]
    """Indexes of columns that must not be null."""
    guessed: tuple[str, ...] = ()
    """Columns whose type has no mapping and is delivered as text."""
    stale: set[int] = field(default_factory=set, compare=False)
    """Not empty: a value did not fit its type as it is known; the plan is to be made anew. Holds the table's OID."""
    composites: tuple[PgType, ...] = ()
    """Types that are read as records of their attributes."""
    handed: Table | None = None
    """The table as it is handed on, where its records have another key than its rows: for the decoder in Python."""

    @property
    def out(self) -> Table:
        return self.handed or self.table

    @property
    def taken(self) -> list[Parser]:
        """Returns the parsers of the captured columns."""
        return [parse for parse in self.parsers if parse]

    def relaxed(self, nulls: Sequence[int]) -> TableDecodePlan:
        """The plan with these columns optional: the catalog was newer than the rows."""
        columns = tuple(
            replace(column, optional=True) if i in nulls else column for i, column in enumerate(self.table.columns)
        )
        required = tuple(i for i in self.required if i not in nulls)
        handed = replace(self.handed, columns=columns) if self.handed else None
        return replace(self, table=replace(self.table, columns=columns), required=required, handed=handed)


@dataclass(frozen=True, slots=True)
class TableDecodePlanner:
    """Builds plans; RELATION decides columns and types, the catalog adds what RELATION lacks."""

    catalog: SourceCatalog
    modes: HandlingModes
    filters: TableFilters
    masks: ColumnMasks = field(default_factory=lambda: ColumnMasks(CAPTURE))
    keys: MessageKeys = field(default_factory=MessageKeys)
    any_encoding: bool = False
    """Text may be of any, and only UTF-8 is read."""
    last: LastKnownKeys | None = None
    """Of the stream, which may lie behind the catalog."""
    propagated: PropagatedTypes = field(default_factory=PropagatedTypes)

    def plan(self, relation: Relation, info: TableInfo | None = None) -> TableDecodePlan:
        info = info or self.catalog.table(relation.oid)
        known = self.catalog.types((column.type_oid, column.typmod) for column in relation.columns)
        last = self.last.of(relation.oid, [column.name for column in relation.columns]) if self.last else ()
        key_names = key_of(relation, info, last)
        if self.last:
            dropped = info is not None and not info.key
            self.last.note(relation.oid, key_names, unmarked=relation.identity == "f", dropped=dropped)
        return build_plan(relation, info, known, key_names, self)


def planner_of(connection: AdminConnection, settings: PostgresSettings) -> TableDecodePlanner:
    return TableDecodePlanner(
        SourceCatalog(connection),
        settings.modes,
        settings.filters,
        settings.masks,
        settings.keys,
        is_lacking(connection),
        propagated=settings.propagated,
    )


def build_plan(
    relation: Relation, info: TableInfo | None, known: TypeNames, key_names: Sequence[str], planner: TableDecodePlanner
) -> TableDecodePlan:
    columns: list[Column] = []
    parsers: list[Parser | None] = []
    guessed: list[str] = []
    numbers = numbers_of(relation, info)
    wide = _wide(relation, known)
    stale: set[int] = set()
    types = TypeRegistry(known.types, lambda: stale.add(relation.oid), lambda: stale.update((MISFIT, relation.oid)))
    for column in relation.columns:
        in_key = column.name in key_names
        pg = known.types.get(column.type_oid) or PgType(column.type_oid, "")
        unknown = not is_known(pg, types)
        if not in_key and (
            not _taken(relation, column.name, planner.filters) or (unknown and planner.modes.unknown == "skip")
        ):
            parsers.append(None)
            continue
        facts = _Facts.of(column, info, in_key, numbers.get(column.name, 0))
        # A key stays what it is: two rows must not become one, and records of before have it so. In the row it is bounded.
        exact = in_key or column.name in planner.keys.columns_of(relation.schema, relation.table)
        modes = planner.modes.of_key() if exact else planner.modes
        mapped = map_type(pg, -1 if column.type_oid in wide else column.typmod, modes, types, facts.dims)
        if facts.not_null and mapped.required:
            mapped = replace(mapped, parse=mapped.required)
        if unknown:
            _allow_unknown(relation, column.name, planner.modes)
            guessed.append(column.name)
        source_type = known.names.get((column.type_oid, column.typmod), "")
        place = (relation.schema, relation.table, column.name)
        masked = planner.masks.apply(mapped, *place, length=_length(pg, column.typmod), in_key=exact)
        source_type = source_type if masked is mapped or in_key else "text"
        masked = planner.propagated.apply(masked, place, pg.name, partial(type_parameters, pg, column.typmod))
        if planner.any_encoding:
            masked = replace(masked, parse=checked(masked.parse, masked.avro, column.name))
        columns.append(_column(column.name, masked, source_type, facts, bounded=exact and not planner.modes.exact))
        parsers.append(masked.parse)
    names = [column.name for column in columns]
    key = tuple(names.index(name) for name in key_names)
    table = Table((relation.schema, relation.table), relation.oid, tuple(columns), key, SOURCE_SCHEMA)
    required = tuple(i for i, column in enumerate(columns) if not column.optional)
    logged = [column.name for column in relation.columns if column.in_key] or names
    handed = planner.keys.rekeyed(table, logged, "REPLICA IDENTITY FULL", CAPTURE)
    stale.clear()
    return TableDecodePlan(
        relation, table, tuple(parsers), None not in parsers, required, tuple(guessed), stale,
        _composites(relation, known) if planner.modes.composite == "record" else (),
        None if handed is table else handed,
    )  # fmt: skip


def _composites(relation: Relation, known: TypeNames) -> tuple[PgType, ...]:
    """Returns the composite types of all columns, also within arrays, domains and each other."""
    found: dict[int, PgType] = {}
    left = [column.type_oid for column in relation.columns]
    while left:
        pg = known.types.get(left.pop())
        if pg and pg.oid not in found:
            found[pg.oid] = pg
            left += (pg.element, pg.base, *(oid for _, oid, _ in pg.attributes))
    return tuple(pg for pg in found.values() if pg.kind == "c")


def _wide(relation: Relation, known: TypeNames) -> set[int]:
    """Types whose columns are all as the widest of them: one record of a name has one form."""
    return {
        column.type_oid
        for column in relation.columns
        if not 0 < column.typmod <= INT16_MAX and known.types.get(column.type_oid, PgType(0, "")).name == "sparsevec"
    }


def _length(pg: PgType, typmod: int) -> int:
    return typmod - 4 if pg.name in ("varchar", "bpchar") and typmod >= 4 else 0


def _allow_unknown(relation: Relation, column: str, modes: HandlingModes) -> None:
    if modes.unknown == "refuse":
        where = {"table": f"{relation.schema}.{relation.table}", "column": column}
        raise CdcError(TYPE_REFUSED, "the type has no form of its own", where=where)


def renamed_since(relation: Relation, info: TableInfo | None) -> dict[str, int]:
    """The catalog may be newer than the stream: columns that have another name by now, with their numbers there.

    Both list columns in the order of their numbers. A column that only the stream knows is the one of its type that only
    the catalog knows between the same neighbours, if there is one.
    """
    if info is None:
        return {}
    newer = [c for c in info.columns.values() if all(c.name != column.name for column in relation.columns)]
    out: dict[str, int] = {}
    for at, column in enumerate(relation.columns):
        if column.name in info.columns:
            continue
        low = max((info.columns[c.name].attnum for c in relation.columns[:at] if c.name in info.columns), default=0)
        rest = [info.columns[c.name].attnum for c in relation.columns[at:] if c.name in info.columns]
        high = min(rest, default=1 << 31)
        fits = [c.attnum for c in newer if low < c.attnum < high and c.type_oid == column.type_oid]
        if len(fits) == 1 and fits[0] not in out.values():
            out[column.name] = fits[0]
    return out


def numbers_of(relation: Relation, info: TableInfo | None) -> dict[str, int]:
    """The columns' numbers in the catalog, of those that are certain.

    The stream lists columns in the order of their numbers. Where the catalog's do not ascend, a name is another column's by
    now, and of the two that stand in each other's way nobody knows which.
    """
    if info is None:
        return {}
    renamed = renamed_since(relation, info)
    found = [
        (column.name, info.columns[column.name].attnum if column.name in info.columns else renamed.get(column.name, 0))
        for column in relation.columns
    ]
    numbers = [number for _, number in found]
    highest = [*accumulate(numbers, max, initial=0)]
    lowest = [*accumulate((number or 1 << 31 for number in reversed(numbers)), min, initial=1 << 31)][::-1]
    return {name: number for at, (name, number) in enumerate(found) if number and highest[at] < number < lowest[at + 1]}


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the catalog adds to one column, as far as it still speaks of the same column."""

    attnum: int = 0
    not_null: bool = False
    default: str | None = None
    dims: int = 1

    @classmethod
    def of(cls, column: RelationColumn, info: TableInfo | None, in_key: bool, number: int) -> _Facts:
        found = info.columns.get(column.name) if info else None
        if found is None:
            return cls(number, not_null=in_key)
        dims = found.dims if found.type_oid == column.type_oid else 1
        if found.attnum != number:
            return cls(number, in_key, dims=dims)
        return cls(number, found.not_null or in_key, found.default if found.type_oid == column.type_oid else None, dims)


def _is_of_type(constant: bytes, mapped: MappedType, source_type: str) -> bool:
    """Returns whether a default is a text of its column's type: a number for money is none, and one with more digits than the
    scale becomes another number in the server."""
    _, _, fraction = constant.partition(b".")
    if source_type == "money":
        return not constant.lstrip(b"-").replace(b".", b"").isdigit()
    scale = getattr(mapped.parse, "scale", None)
    return scale is None or not fraction.isdigit() or len(fraction) <= scale


def _column(name: str, mapped: MappedType, source_type: str, facts: _Facts, *, bounded: bool) -> Column:
    bound = bound_of(mapped.avro, required=facts.not_null) if bounded else None
    default: Any = NO_DEFAULT
    constant = constant_default(facts.default)
    if constant is not None and _is_of_type(constant, mapped, source_type):
        try:
            default = mapped.parse(constant)
        except (ValueError, IndexError):
            default = NO_DEFAULT
    if bound and default is not NO_DEFAULT and default is not None:
        default = bound(default)
    return Column(name, mapped.avro, not facts.not_null, default, facts.attnum, source_type, bound, mapped.zero)


def _taken(relation: Relation, column: str, filters: TableFilters) -> bool:
    return filters.all_columns or filters.column(relation.schema, relation.table, column)


def key_of(relation: Relation, info: TableInfo | None, last: Key = ()) -> Key:
    """The key's columns, by their names in the stream. RELATION's flags hold unless the catalog agrees on the set and
    knows the order. Under a full identity it flags all columns: the catalog's key holds, else the last one that is known.

    Without either there is none. Whoever reads has no rows of such a table under another key, and its changes hold whole
    old rows; a guessed key would make rows one that are several.
    """
    now = _key_now(relation, info)
    if relation.identity in ("d", "i"):
        flagged = tuple(column.name for column in relation.columns if column.in_key)
        # The catalog's names agree also where their numbers are not certain.
        known = (now, info.key if info else ())
        return next((key for key in known if set(key) == set(flagged)), flagged)
    if now or last:
        return now or last
    return info.key if info and {column.name for column in relation.columns}.issuperset(info.key) else ()


def _key_now(relation: Relation, info: TableInfo | None) -> Key:
    """The catalog's key; empty where a column of it is not certain."""
    if info is None:
        return ()
    names = {number: name for name, number in numbers_of(relation, info).items()}
    key = tuple(names.get(info.columns[name].attnum, "") for name in info.key if name in info.columns)
    return key if all(key) and len(key) == len(info.key) else ()


def changed(old: Table, new: Table) -> Mapping[str, list[str]]:
    """Returns what a schema change did, by column names, for logs."""
    before = {column.name: column for column in old.columns}
    after = {column.name: column for column in new.columns}
    return {
        "added": [name for name in after if name not in before],
        "dropped": [name for name in before if name not in after],
        "altered": [name for name in after if name in before and after[name] != before[name]],
    }
