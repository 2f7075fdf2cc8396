"""The target's tables as they stand: read from PostgreSQL's catalogue, created and widened as the changes need it."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.table_batch import (
    IS_CURRENT,
    KEY,
    OP,
    VALID_FROM,
    VALID_TO,
    VALID_TO_POSITION,
    TableBatch,
)
from cdcworker.connectors.sink_errors import SCHEMA_REFUSED, gone
from cdcworker.connectors.warehouses import schema_policy, target_columns, value_text
from cdcworker.connectors.warehouses.column_changes import ColumnNaming
from cdcworker.connectors.warehouses.postgres import (
    dropped_columns,
    found_tables,
    statements,
    type_conflicts,
    version_statements,
)
from cdcworker.connectors.warehouses.source_types import TargetColumn
from cdcworker.connectors.warehouses.sql import catalog
from cdcworker.connectors.warehouses.sql.dropped_columns import SettledColumns
from cdcworker.connectors.warehouses.sql.ledger import COLUMNS, WRITTEN
from cdcworker.connectors.warehouses.sql.target_table import OwnColumn
from cdcworker.connectors.warehouses.target_columns import OutputForm
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

log = logging.getLogger(__name__)

_KEY = """select array_agg(a.attname::text) from pg_index i
    join pg_attribute a on a.attrelid = i.indrelid and a.attnum = any(i.indkey)
    where i.indrelid = %s::oid and i.indisprimary"""
VERSIONS = "v"
"""The kind of stage tables that hold versions and deletes."""
RESERVED = ("_cdcworker", "information_schema")
"""Our own bookkeeping, which a source that is a warehouse too may hold as tables, and the server's."""
_OWN: Final = catalog.OwnTypes("text", "boolean", "timestamp with time zone", "clock_timestamp()")


class TargetCatalog:
    """The tables of the target as this session has seen them. Forgotten whenever a transaction fails."""

    def __init__(self, schema: str = "", output: OutputForm | None = None, sink: str = "") -> None:
        self._schema = schema
        self._output = output or OutputForm()
        self._sink = sink
        self._newest: dict[str, bytes] = {}
        """By topic the highest position that its rows had when they were looked at for dropped columns."""
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
        self._newest.clear()
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
        with catalog.of_topic(batch), connection.transaction():
            return self._prepare(connection, batch)

    def _prepare(self, connection: Connection, batch: TableBatch) -> statements.TargetTable:
        schema, table = self._place(batch)
        columns, key = catalog.columns_of(batch), catalog.key_of(batch)
        target = statements.TargetTable(
            schema,
            table,
            {},
            key,
            columns,
            optional_key=catalog.optional_key(batch),
            own=self._own(bool(key)),
            soft=self._output.soft and bool(key),
            position=self._output.position,
            versions=self._output.versions and bool(key),
        )
        target_columns.distinct(target.names, [target.position, *(column.name for column in target.own)], batch)
        types = self._types(connection, target)
        if types is None:
            place = (self._sink, batch.table)
            if connection.execute(WRITTEN, place).fetchone() is not None:
                raise gone(batch.table)
            types = self._create(connection, target)
            # Of a table that was there before and is no more.
            connection.execute("delete from _cdcworker.columns where sink = %s and topic = %s", place)
        target, renamed, settled = self._rename(connection, target, types, batch)
        target = replace(target, types=self._evolve(connection, target, renamed))
        type_conflicts.check(connection, target)
        rows = f"({IS_CURRENT})" if target.versions else ""
        target = replace(target, unique=found_tables.is_unique(connection, target, rows, key=key))
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
        with catalog.of_topic(batch):
            found = found_tables.find(connection, *place)
        if found is None:
            return None
        types = found.types
        versions = IS_CURRENT in types
        keyed = versions or OP not in types
        soft = self._output.soft and keyed
        target = statements.TargetTable(*place, types, (KEY,) if keyed else (), (), own=self._own(keyed), soft=soft)
        target = replace(
            target,
            versions=versions,
            position=catalog.position_name(types, self._known(connection, batch.table), self._output.position),
        )
        with catalog.of_topic(batch), connection.transaction():
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

    def _own(self, keyed: bool) -> tuple[OwnColumn, ...]:
        versions = self._output.versions and keyed
        out = [] if keyed and not versions else [OwnColumn(OP, "text")]
        if versions:
            out += [OwnColumn(name, "timestamp with time zone") for name in (VALID_FROM, VALID_TO)]
            out += [OwnColumn(VALID_TO_POSITION, "bytea"), OwnColumn(IS_CURRENT, "boolean")]
        return (*out, *catalog.own_columns(self._output, _OWN, keyed))

    def _known(self, connection: Connection, topic: str) -> dict[int, str]:
        return dict(connection.execute(COLUMNS, (self._sink, topic)).fetchall())

    def _rename(
        self, connection: Connection, target: statements.TargetTable, types: Mapping[str, str], batch: TableBatch
    ) -> tuple[statements.TargetTable, Mapping[str, str], bool]:
        """Gives the table's columns the names that the source has for them, and drops those that it dropped. What of the batch the
        table takes, its types then, and whether that holds for every batch in this shape."""
        place, known = (self._sink, batch.table), self._known(connection, batch.table)

        def settle(planned: ColumnNaming) -> SettledColumns:
            return dropped_columns.settled(connection, target, batch, planned, self._sink, self._newest)

        found = catalog.followed(target, types, known, batch, self._output, settle)
        names = found.planned.names
        self._put_names(connection, target, found.planned, place)
        if known != found.names:
            connection.execute("delete from _cdcworker.columns where sink = %s and topic = %s", place)
            connection.execute(
                """insert into _cdcworker.columns (sink, topic, colid, name)
                   select %s, %s, * from unnest(%s::int[], %s::text[])""",
                (*place, list(found.names), list(found.names.values())),
            )
        return found.target, {names[name]: type_ for name, type_ in types.items() if name in names}, found.settled

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
            log.info("%s table=%s column=%s now=%s", done, target.plain_name, old, new)
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
        place = catalog.target_place(batch, self._schema)
        if place[0] in RESERVED or place[0].startswith("pg_"):
            raise catalog.reserved(place, batch.table)
        catalog.own_place(self._owners, place, place, batch.table)
        return place

    def _types(self, connection: Connection, target: statements.TargetTable) -> dict[str, str] | None:
        found = found_tables.find(connection, target.schema, target.table)
        if found is None:
            return None
        types = found.types
        where = {"table": target.plain_name, "key": ",".join(target.key)}
        if target.versions != (IS_CURRENT in types):
            raise CdcError(SCHEMA_REFUSED, "the table was made with another output.mode", where=where)
        primary = connection.execute(_KEY, (found.oid,)).fetchone()
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
        log.info("created table=%s columns=%d", target.plain_name, len(target.columns))
        types = self._types(connection, target)
        assert types is not None
        return types

    def _evolve(
        self, connection: Connection, target: statements.TargetTable, types: Mapping[str, str]
    ) -> dict[str, str]:
        """ADD COLUMN and widening, in the transaction of the rows that need them."""
        where = {"table": target.plain_name}
        clauses, out = found_tables.column_clauses(
            target, types, _default,
            lambda name: schema_policy.refuse(self._output.follows, "widen", name, where),
        )  # fmt: skip
        place = [OwnColumn(target.position, "bytea")] if target.position else []
        for own in (*place, *target.own):
            if own.name not in types:
                clauses.append(f"add column {statements.clause(own)}")
                out[own.name] = own.type
        if clauses:
            with type_conflicts.altering(target, [name for name in out if out[name] != types.get(name)]):
                connection.execute(f"alter table {target.name} {', '.join(clauses)}")
            log.info("altered table=%s changes=%d", target.plain_name, len(clauses))
        return out


def _default(column: TargetColumn) -> str:
    """Rows that stand already got the source's default without an event; so do rows of the older shape."""
    value = catalog.default_value(column)
    if value is None:
        return ""
    text = value_text.to_text(value, column)[0].as_py()
    return f" default {statements.literal(text)}::{column.type}"
