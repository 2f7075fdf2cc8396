"""The target's tables as they stand: read from PostgreSQL's catalogue, created and widened as the changes need it."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.api.table_batch import (
    DELETED,
    IS_CURRENT,
    KEY,
    OP,
    POSITION,
    UNCHANGED,
    VALID_FROM,
    VALID_TO,
    VALID_TO_POSITION,
    TableBatch,
)
from cdcworker.connectors.arrow.decode import DecodePlan, arrow_type
from cdcworker.connectors.sink_errors import SCHEMA_REFUSED, TARGET_COLLISION, TARGET_RESERVED, gone
from cdcworker.connectors.warehouses import schema_policy, target_columns, value_text
from cdcworker.connectors.warehouses.column_changes import ColumnNaming, TargetTableColumn, not_renamed, plan
from cdcworker.connectors.warehouses.postgres import dropped_columns, statements, type_conflicts, version_statements
from cdcworker.connectors.warehouses.source_types import TargetColumn, widened
from cdcworker.connectors.warehouses.target_columns import OutputForm, missing_key, named
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.topics import unescape

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

log = logging.getLogger(__name__)

_COLUMNS = """select a.attname, format_type(a.atttypid, a.atttypmod)
    from pg_attribute a where a.attrelid = %s::oid and a.attnum > 0 and not a.attisdropped order by a.attnum"""
_TABLE = """select c.oid, c.relkind::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = %s and c.relname = %s"""
_KEY = """select array_agg(a.attname::text) from pg_index i
    join pg_attribute a on a.attrelid = i.indrelid and a.attnum = any(i.indkey)
    where i.indrelid = %s::oid and i.indisprimary"""
_UNIQUE = """select exists (select from pg_index i where i.indrelid = to_regclass(%s)
      and i.indisunique and i.indisvalid and i.indimmediate and i.indexprs is null
      and coalesce(pg_get_expr(i.indpred, i.indrelid), '') = %s and (i.indnullsnotdistinct or not %s) and %s::text[] @> (select array_agg(a.attname::text)
        from pg_attribute a where a.attrelid = i.indrelid and a.attnum = any(i.indkey)))"""
_WRITTEN = """select from _cdcworker.columns c join _cdcworker.ledger l using (sink, topic)
    where c.sink = %(sink)s and c.topic = %(topic)s and l.applied is not null limit 1"""
"""Whether the sink has had a table for a topic and stands behind rows of it: not after its offsets were reset."""
VERSIONS = "v"
"""The kind of stage tables that hold versions and deletes."""
RESERVED = ("_cdcworker", "information_schema")
"""Our own bookkeeping, which a source that is a warehouse too may hold as tables, and the server's."""
POSITION_ID = int(target_columns.POSITION_ID)
"""Beside the numbers that the source gives to its columns."""


class TargetCatalog:
    """The tables of the target as this session has seen them. Forgotten whenever a transaction fails."""

    def __init__(self, schema: str = "", output: OutputForm | None = None, sink: str = "") -> None:
        self._schema = schema
        self._output = output or OutputForm()
        self._sink = sink
        self._known = dropped_columns.KnownColumns(sink)
        self._targets: dict[str, tuple[Mapping[str, Any], tuple[str, ...], statements.TargetTable]] = {}
        self._owners: dict[tuple[str, str], str] = {}
        self._stages: dict[tuple[str, str], tuple[str, statements.TargetTable]] = {}
        self._filled: set[str] = set()
        self._used: set[str] = set()
        """Stage tables that this transaction has filled."""
        self._looked: set[str] = set()
        """Topics whose tables this transaction has looked at."""

    def forget(self) -> None:
        self._targets.clear()
        self._known.newest.clear()
        self._stages.clear()
        self._filled.clear()

    def begin(self) -> None:
        """A commit has emptied the stage tables: cheaper than to truncate each."""
        self._used.clear()
        self._looked.clear()

    def is_old(self, topic: str) -> bool:
        """Returns whether a topic's table is known from an earlier transaction: somebody may have changed it since."""
        return topic in self._targets and topic not in self._looked

    def prepare(self, connection: Connection, batch: TableBatch) -> statements.TargetTable:
        """The table ready to take the batch: created, or with columns added and widened. Where that fails the transaction
        can be gone on with."""
        known = self._targets.get(batch.table)
        if known is not None and known[0] is batch.schema and known[1] == batch.key:
            return known[2]
        with _of(batch), connection.transaction():
            return self._prepare(connection, batch)

    def _prepare(self, connection: Connection, batch: TableBatch) -> statements.TargetTable:
        schema, table = self._place(batch)
        columns = tuple(named(member) for member in batch.schema["fields"])
        present = {column.field for column in columns}
        columns += tuple(missing_key(name, batch) for name in batch.key if name not in present)
        key = tuple(unescape(name) for name in batch.key)
        optional = frozenset(
            unescape(str(member["name"])) for member in batch.schema["fields"] if isinstance(member["type"], list)
        )
        target = statements.TargetTable(
            schema, table, {}, key, columns, optional & set(key), self._own(bool(key)), self._output.soft and bool(key)
        )
        target = replace(target, position=self._output.position, versions=self._output.versions and bool(key))
        target_columns.distinct(target.names, [target.position, *(column.name for column in target.own)], batch)
        types = self._types(connection, target)
        if types is None:
            if connection.execute(_WRITTEN, {"sink": self._sink, "topic": batch.table}).fetchone() is not None:
                raise gone(batch.table)
            types = self._create(connection, target)
            # Of a table that was there before and is no more.
            place = (self._sink, batch.table)
            connection.execute("delete from _cdcworker.columns where sink = %s and topic = %s", place)
        target, renamed, settled = self._rename(connection, target, types, batch)
        target = replace(target, types=self._evolve(connection, target, renamed))
        type_conflicts.check(connection, target)
        rows = f"({IS_CURRENT})" if target.versions else ""
        found = connection.execute(_UNIQUE, (target.name, rows, bool(target.optional_key), list(key))).fetchone()
        target = replace(target, unique=bool(found and found[0]))
        if settled:
            self._targets[batch.table] = (batch.schema, batch.key, target)
            self._looked.add(batch.table)
        return target

    def standing(self, connection: Connection, batch: TableBatch) -> statements.TargetTable | None:
        """The table as it is, for a batch that is bare; None: there is none. Its key is named where there is one, not told."""
        known = self._targets.get(batch.table)
        if known is not None:
            return known[2]
        place = self._place(batch)
        found = connection.execute(_TABLE, place).fetchone()
        if found is None:
            return None
        with _of(batch):
            type_conflicts.is_table(place, found[1])
        types: dict[str, str] = dict(connection.execute(_COLUMNS, (found[0],)).fetchall())
        versions = IS_CURRENT in types
        keyed = versions or OP not in types
        soft = self._output.soft and keyed
        target = statements.TargetTable(*place, types, (KEY,) if keyed else (), (), own=self._own(keyed), soft=soft)
        target = replace(target, versions=versions, position=self._position(connection, batch.table, types))
        with _of(batch), connection.transaction():
            return replace(target, types=self._evolve(connection, target, types))

    def stage(self, connection: Connection, target: statements.TargetTable, kind: str) -> str:
        """An empty stage table of the target's shape; its name in SQL."""
        known = self._stages.get((target.name, kind))
        if known is not None and known[1] is target:
            if known[0] in self._used:
                connection.execute(statements.empty(known[0]))
            self._used.add(known[0])
            return known[0]
        name = known[0] if known else statements.quote(f"_cdc_{kind}_{len(self._stages)}")
        for statement in (version_statements if kind == VERSIONS else statements).stage(target, name):
            connection.execute(statement)
        self._stages[target.name, kind] = (name, target)
        self._used.add(name)
        return name

    def is_empty(self, connection: Connection, target: statements.TargetTable) -> bool:
        """Returns whether the table holds no row, for the first call; False after that."""
        if target.name in self._filled:
            return False
        self._filled.add(target.name)
        found = connection.execute(f"select exists (select from {target.name})").fetchone()
        return not (found and found[0])

    # -- pieces -------------------------------------------------------------------------------------------------------

    def _own(self, keyed: bool) -> tuple[statements.OwnColumn, ...]:
        versions = self._output.versions and keyed
        out = [] if keyed and not versions else [statements.OwnColumn(OP, "text")]
        if versions:
            out += [statements.OwnColumn(name, "timestamp with time zone") for name in (VALID_FROM, VALID_TO)]
            out += [statements.OwnColumn(VALID_TO_POSITION, "bytea"), statements.OwnColumn(IS_CURRENT, "boolean")]
        if self._output.log:
            out.append(statements.OwnColumn(UNCHANGED, "text"))
        if self._output.soft and keyed:
            out.append(statements.OwnColumn(DELETED, "boolean", "false"))
        if self._output.synced:
            out.append(statements.OwnColumn(self._output.synced, "timestamp with time zone", "clock_timestamp()"))
        return tuple(out)

    def _position(self, connection: Connection, topic: str, types: Mapping[str, str]) -> str:
        """The name of a table's column of positions: as it is, where there is one, else as it is to be."""
        found = connection.execute(
            "select name from _cdcworker.columns where sink = %s and topic = %s and colid = %s",
            (self._sink, topic, POSITION_ID),
        ).fetchone()
        names = (found[0] if found else "", POSITION)
        return next((name for name in names if name in types), self._output.position)

    def _rename(
        self, connection: Connection, target: statements.TargetTable, types: Mapping[str, str], batch: TableBatch
    ) -> tuple[statements.TargetTable, Mapping[str, str], bool]:
        """A column that the source calls otherwise now is called so here too, by the source's identity of it; and one that
        the source dropped makes room for another one of its name, or goes. What of the batch the table takes, its types
        then, and whether that holds for every batch in this shape."""
        ids = {unescape(str(m["name"])): int(m["cdc.colid"]) for m in batch.schema["fields"] if m.get("cdc.colid")}
        if target.position:
            ids[target.position] = POSITION_ID
        place, where = (self._sink, batch.table), {"table": f"{target.schema}.{target.table}"}
        rows = connection.execute("select colid, name from _cdcworker.columns where sink = %s and topic = %s", place)
        known: dict[int, str] = dict(rows.fetchall())
        # Of several that are said to be one column it is the one that the source has under its name, or the newest.
        order = sorted(known.items(), key=lambda pair: (ids.get(pair[1]) == pair[0], pair[0]))
        held = {name: id for id, name in order if name in types}
        if POSITION_ID not in held.values() and POSITION in types:
            held[POSITION] = POSITION_ID
        have = [TargetTableColumn(name, held.get(name)) for name in types]
        wanted = [
            TargetTableColumn(name, ids.get(name))
            for name in (*target.names, *([target.position] if target.position else []))
        ]
        own = {target.position, POSITION, *(column.name for column in target.own)}
        there, asked = ([column for column in columns if column.name not in own] for columns in (have, wanted))
        not_renamed(known, there, asked, where)
        planned, settled = plan(have, wanted, target.key, where), True
        if self._output.deletes(target.key):
            gone = dropped_columns.settled(connection, target, batch, planned, self._known)
            settled, have = gone.settled, [column for column in have if column.name not in gone.deleted]
            wanted = [column for column in wanted if column.name not in gone.late]
            target = replace(target, columns=tuple(c for c in target.columns if c.name not in gone.late))
            types = {name: type_ for name, type_ in types.items() if name not in gone.deleted}
            planned = plan(have, wanted, target.key, where)
        schema_policy.judge(self._output.follows, planned, self._output.own, where)
        self._put_names(connection, target, planned, place)
        taken = {column.name for column in wanted}
        made = {id: planned.names[name] for name, id in held.items() if name in types}
        made |= {id: name for name, id in ids.items() if name in taken}
        if known != made:
            connection.execute("delete from _cdcworker.columns where sink = %s and topic = %s", place)
            connection.execute(
                """insert into _cdcworker.columns (sink, topic, colid, name)
                   select %s, %s, * from unnest(%s::int[], %s::text[])""",
                (*place, list(made), list(made.values())),
            )
        return target, {planned.names[name]: type_ for name, type_ in types.items()}, settled

    @staticmethod
    def _put_names(
        connection: Connection, target: statements.TargetTable, planned: ColumnNaming, place: tuple[str, str]
    ) -> None:
        for old, new in itertools.chain.from_iterable(planned.steps):
            with type_conflicts.altering(target, [old]):
                connection.execute(
                    f"alter table {target.name} rename column {statements.quote(old)} to {statements.quote(new)}"
                )
        for name in planned.dropped:
            # Rows to come have no value of it.
            now = planned.names[name]
            with type_conflicts.altering(target, [name]):
                connection.execute(f"alter table {target.name} alter column {statements.quote(now)} drop default")
        names = {old: new for old, new in planned.names.items() if old != new}
        for old, new in names.items():
            done = "a dropped column made room" if old in planned.dropped else "renamed"
            log.info("%s table=%s.%s column=%s now=%s", done, target.schema, target.table, old, new)
        if names:
            # Rows that have left their key wait there for what comes under the new one.
            connection.execute(
                """update _cdcworker.tombstone set row = (
                     select jsonb_object_agg(coalesce(m.new, e.key), e.value) from jsonb_each(row) e
                     left join unnest(%s::text[], %s::text[]) m(old, new) on m.old = e.key)
                   where sink = %s and topic = %s and row is not null""",
                (list(names), list(names.values()), *place),
            )

    def _place(self, batch: TableBatch) -> tuple[str, str]:
        parts = batch.path or tuple(batch.table.split(".")[-2:])
        place = (self._schema or (parts[-2] if len(parts) > 1 else "public"), parts[-1])
        if place[0] in RESERVED or place[0].startswith("pg_"):
            where = {"table": ".".join(place), "topic": batch.table}
            raise CdcError(TARGET_RESERVED, "the topic's target schema is not for data", where=where)
        owner = self._owners.setdefault(place, batch.table)
        if owner != batch.table:
            raise CdcError(
                TARGET_COLLISION,
                "two topics write to one table",
                where={"table": ".".join(place), "topic": batch.table},
            )
        return place

    def _types(self, connection: Connection, target: statements.TargetTable) -> dict[str, str] | None:
        found = connection.execute(_TABLE, (target.schema, target.table)).fetchone()
        if found is None:
            return None
        type_conflicts.is_table((target.schema, target.table), found[1])
        types: dict[str, str] = dict(connection.execute(_COLUMNS, (found[0],)).fetchall())
        where = {"table": f"{target.schema}.{target.table}", "key": ",".join(target.key)}
        if target.versions != (IS_CURRENT in types):
            raise CdcError(SCHEMA_REFUSED, "the table was made with another output.mode", where=where)
        primary = connection.execute(_KEY, (found[0],)).fetchone()
        names = set(primary[0]) if primary and primary[0] else set(target.key)
        # Of versions a key has several, told apart by their positions, whatever that column is called.
        if not names >= set(target.key) or len(names) - len(target.key) not in ((0, 1) if target.versions else (0,)):
            raise CdcError(SCHEMA_REFUSED, "the key of the table changed", where=where)
        return types

    def _create(self, connection: Connection, target: statements.TargetTable) -> dict[str, str]:
        found = connection.execute("select to_regnamespace(%s)", (statements.quote(target.schema),)).fetchone()
        if not found or not found[0]:
            connection.execute(f"create schema if not exists {statements.quote(target.schema)}")
        connection.execute(statements.create_table(target))
        if target.versions:
            connection.execute(version_statements.create_index(target))
        log.info("created table=%s.%s columns=%d", target.schema, target.table, len(target.columns))
        types = self._types(connection, target)
        assert types is not None
        return types

    def _evolve(
        self, connection: Connection, target: statements.TargetTable, types: Mapping[str, str]
    ) -> dict[str, str]:
        """ADD COLUMN and widening, in the transaction of the rows that need them."""
        out = dict(types)
        clauses = []
        for column in target.columns:
            have = types.get(column.name)
            if have is None:
                clauses.append(f"add column {statements.quote(column.name)} {column.type}{_default(column)}")
                out[column.name] = column.type
                continue
            needed = widened(have, column.type)
            if needed is None:
                raise CdcError(
                    SCHEMA_REFUSED,
                    f"a column of type {have} cannot hold {column.type}",
                    where={"table": f"{target.schema}.{target.table}", "column": column.name},
                )
            if needed != have:
                where = {"table": f"{target.schema}.{target.table}"}
                schema_policy.refuse(self._output.follows, "widen", column.name, where)
                name = statements.quote(column.name)
                clauses.append(f"alter column {name} type {needed} using {name}::{needed}")
                out[column.name] = needed
        place = [statements.OwnColumn(target.position, "bytea")] if target.position else []
        for own in (*place, *target.own):
            if own.name not in types:
                clauses.append(f"add column {own.clause}")
                out[own.name] = own.type
        if clauses:
            with type_conflicts.altering(target, [name for name in out if out[name] != types.get(name)]):
                connection.execute(f"alter table {target.name} {', '.join(clauses)}")
            log.info("altered table=%s.%s changes=%d", target.schema, target.table, len(clauses))
        return out


@contextlib.contextmanager
def _of(batch: TableBatch) -> Iterator[None]:
    """Errors name the topic, by which a table is known."""
    try:
        yield
    except CdcError as exc:
        where = {"topic": batch.table, **(exc.where or {})}
        raise CdcError(exc.code, exc.message, where=where, hint=exc.hint) from exc


def _default(column: TargetColumn) -> str:
    """Rows that stand already got the source's default without an event; so do rows of the older shape."""
    import pyarrow as pa

    if column.default is None:
        return ""
    raw = column.default.encode("latin-1") if column.kind in ("decimal", "bytes", "bits") else column.default
    kind = arrow_type(column.avro, DecodePlan({"type": "record", "name": "r", "fields": []}))
    text = value_text.to_text(pa.array([raw], kind), column)[0].as_py()
    return f" default {statements.literal(text)}::{column.type}"
