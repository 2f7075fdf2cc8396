"""The tables of the file as a transaction has seen them: created and altered as the changes need it, in the transaction of their rows."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

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
from cdcworker.connectors.warehouses import arrow_types, schema_policy, target_columns
from cdcworker.connectors.warehouses.column_changes import ColumnNaming
from cdcworker.connectors.warehouses.duckdb import found_tables, statements, types
from cdcworker.connectors.warehouses.duckdb.connection import Connection
from cdcworker.connectors.warehouses.duckdb.errors import of_alter
from cdcworker.connectors.warehouses.duckdb.found_tables import FoundTable
from cdcworker.connectors.warehouses.duckdb.ledger import SCHEMA, DuckDbLedger
from cdcworker.connectors.warehouses.source_types import TargetColumn
from cdcworker.connectors.warehouses.sql import catalog, dropped_columns
from cdcworker.connectors.warehouses.sql.dropped_columns import SettledColumns, position_column
from cdcworker.connectors.warehouses.sql.ledger import COLUMNS, WRITTEN
from cdcworker.connectors.warehouses.sql.target_table import OwnColumn
from cdcworker.connectors.warehouses.target_columns import OutputForm
from cdcworker.schemas.errors import CdcError

log = logging.getLogger(__name__)

RESERVED: Final = (SCHEMA, "information_schema", "pg_catalog")
"""Our own bookkeeping, which a source that is a warehouse too may hold as tables, and DuckDB's."""
_OWN: Final = catalog.OwnTypes(types.TEXT, types.BOOLEAN, types.MOMENT, "get_current_timestamp()")


@dataclass(frozen=True, slots=True)
class _Positions:
    """The positions of one topic's table, as the ledger and the table have them."""

    connection: Connection
    target: statements.TargetTable
    ledger: DuckDbLedger
    topic: str

    def applied(self) -> bytes | None:
        return self.ledger.applied(self.connection).get(self.topic)

    def newest(self, planned: ColumnNaming) -> bytes:
        column = position_column(planned, self.target.position)
        found = self.connection.one(statements.newest(self.target, column)) if column else None
        return b"" if found is None else found[0] or b""


class TargetCatalog:
    """The tables of one transaction. Between two of them others may have opened the file: it is looked at anew."""

    def __init__(self, ledger: DuckDbLedger, schema: str = "", output: OutputForm | None = None) -> None:
        self._ledger = ledger
        self._schema = schema
        self._output = output or OutputForm()
        self._newest: dict[str, bytes] = {}
        """By topic the highest position that its rows had when they were looked at for dropped columns."""
        self._targets: dict[str, tuple[Mapping[str, Any], tuple[str, ...], statements.TargetTable]] = {}
        self._owners: dict[tuple[str, str], str] = {}

    def forget(self) -> None:
        self._targets.clear()
        self._newest.clear()

    def begin(self) -> None:
        self._targets.clear()

    def is_old(self, topic: str) -> bool:
        """Returns False: no table is known from an earlier transaction."""
        return False

    def target(self, connection: Connection, batch: TableBatch) -> statements.TargetTable | None:
        """Returns the table ready to take the batch: created, or with columns added and widened. None: there is none, and the batch
        needs none."""
        known = self._targets.get(batch.table)
        if known is not None and (batch.bare or (known[0] is batch.schema and known[1] == batch.key)):
            return known[2]
        with catalog.of_topic(batch):
            return self._standing(connection, batch) if batch.bare else self._prepare(connection, batch)

    def _prepare(self, connection: Connection, batch: TableBatch) -> statements.TargetTable:
        target = self._wanted(batch)
        place = (self._ledger.sink, batch.table)
        found = found_tables.find(connection, target.schema, target.table, self._ledger)
        if found is None:
            if connection.one(WRITTEN, place) is not None:
                raise gone(batch.table)
            # Of a table that was there before and is no more.
            connection.do("delete from _cdcworker.columns where sink = %s and topic = %s", place)
            self._create(connection, target)
            found = FoundTable({}, target.key)
            there: Mapping[str, str] = self._types(connection, target)
        else:
            there = found.types
        _check_form(target, replace(found, types=there))
        target, there, settled = self._follow(connection, target, there, batch)
        target = replace(target, types=self._evolve(connection, target, there))
        if not found.key and target.key:
            found_tables.put_key(connection, (target.schema, target.table), target.key)
        if settled:
            self._targets[batch.table] = (batch.schema, batch.key, target)
        return target

    def _wanted(self, batch: TableBatch) -> statements.TargetTable:
        """Returns the table as the batch alone would have it."""
        columns, key = catalog.columns_of(batch), catalog.key_of(batch)
        target = statements.TargetTable(
            *self._place(batch),
            {column.name: types.name_of(types.arrow_of(column)) for column in columns},
            key,
            columns,
            own=self._own(bool(key)),
            soft=self._output.soft and bool(key),
            position=self._output.position,
            versions=self._output.versions and bool(key),
        )
        own = [target.position, *(column.name for column in target.own)]
        target_columns.distinct(target.names, own, batch)
        found_tables.check_names([*filter(None, own), *target.names], target.plain_name)
        return target

    def _standing(self, connection: Connection, batch: TableBatch) -> statements.TargetTable | None:
        """Returns the table as it is, for a batch that is bare. Its key is named where there is one, not told."""
        place = self._place(batch)
        found = found_tables.find(connection, *place, self._ledger)
        if found is None:
            return None
        keyed = found.versions or OP not in found.types
        key = (found.key or (KEY,)) if keyed else ()
        names = self._known(connection, batch.table)
        target = statements.TargetTable(
            *place,
            found.types,
            key,
            (),
            own=self._own(keyed),
            soft=self._output.soft and keyed,
            position=catalog.position_name(found.types, names, self._output.position),
            versions=found.versions,
        )
        return replace(target, types=self._evolve(connection, target, found.types))

    # -- pieces -------------------------------------------------------------------------------------------------------

    def _own(self, keyed: bool) -> tuple[OwnColumn, ...]:
        versions = self._output.versions and keyed
        out = [] if keyed and not versions else [OwnColumn(OP, types.TEXT)]
        if versions:
            out += [OwnColumn(name, types.MOMENT) for name in (VALID_FROM, VALID_TO)]
            out += [OwnColumn(VALID_TO_POSITION, types.BYTES), OwnColumn(IS_CURRENT, types.BOOLEAN)]
        return (*out, *catalog.own_columns(self._output, _OWN, keyed))

    def _known(self, connection: Connection, topic: str) -> dict[int, str]:
        return dict(connection.ask(COLUMNS, (self._ledger.sink, topic)))

    def _place(self, batch: TableBatch) -> tuple[str, str]:
        place = catalog.target_place(batch, self._schema)
        if place[0].lower() in RESERVED:
            raise catalog.reserved(place, batch.table)
        # DuckDB does not tell upper from lower case in names.
        catalog.own_place(self._owners, (place[0].lower(), place[1].lower()), place, batch.table)
        return place

    def _types(self, connection: Connection, target: statements.TargetTable) -> Mapping[str, str]:
        found = found_tables.find(connection, target.schema, target.table, self._ledger)
        if found is None:
            raise CdcError(SCHEMA_REFUSED, "the table is not there", where={"table": target.plain_name})
        return found.types

    def _create(self, connection: Connection, target: statements.TargetTable) -> None:
        with _altering(target, ()):
            connection.do(f"create schema if not exists {statements.quote(target.schema)}")
            connection.do(statements.create_table(target))
        found_tables.put_key(connection, (target.schema, target.table), target.key)
        log.info("created table=%s columns=%d", target.plain_name, len(target.columns))

    # -- columns ------------------------------------------------------------------------------------------------------

    def _follow(
        self, connection: Connection, target: statements.TargetTable, there: Mapping[str, str], batch: TableBatch
    ) -> tuple[statements.TargetTable, Mapping[str, str], bool]:
        """Gives the table's columns the names that the source has for them, and drops those that it dropped. What of the batch the
        table takes, its types then, and whether that holds for every batch in this shape."""
        place, known = (self._ledger.sink, batch.table), self._known(connection, batch.table)
        positions = _Positions(connection, target, self._ledger, batch.table)

        def settle(planned: ColumnNaming) -> SettledColumns:
            return dropped_columns.settled(batch, planned, target.key, positions, self._newest)

        found = catalog.followed(target, there, known, batch, self._output, settle)
        for name in found.deleted:
            self._alter(connection, target, f"drop column {statements.quote(name)}", name)
        self._put_names(connection, target, found.planned, place)
        if known != found.names:
            connection.do("delete from _cdcworker.columns where sink = %s and topic = %s", place)
            for id, name in found.names.items():
                connection.do("insert into _cdcworker.columns values (%s, %s, %s, %s)", (*place, id, name))
        if found.deleted:
            # Rows that have left their key wait without it too: another column may have its name later.
            connection.do(
                """update _cdcworker.tombstone set row = map_from_entries(list_filter(map_entries(row),
                     lambda e: not list_contains(%s, e.key))) where sink = %s and topic = %s and row is not null""",
                (list(found.deleted), *place),
            )
        names = found.planned.names
        return found.target, {names[name]: kind for name, kind in there.items() if name in names}, found.settled

    def _put_names(
        self, connection: Connection, target: statements.TargetTable, planned: ColumnNaming, place: tuple[str, str]
    ) -> None:
        quote = statements.quote
        for old, new in itertools.chain.from_iterable(planned.steps):
            self._alter(connection, target, f"rename column {quote(old)} to {quote(new)}", old)
        for name in planned.dropped:
            # Rows to come have no value of it.
            now = planned.names[name]
            self._alter(connection, target, f"alter column {quote(now)} drop default", now)
        names = {old: new for old, new in planned.names.items() if old != new}
        for old, new in names.items():
            done = "a dropped column made room" if old in planned.dropped else "renamed"
            log.info("%s table=%s column=%s now=%s", done, target.plain_name, old, new)
        if names:
            # Rows that have left their key wait there for what comes under the new one.
            pairs = ", ".join(f"{statements.literal(old)}: {statements.literal(new)}" for old, new in names.items())
            connection.do(
                f"""update _cdcworker.tombstone set row = map_from_entries(list_transform(map_entries(row),
                     lambda e: {{'k': coalesce(map {{{pairs}}}[e.key], e.key), 'v': e.value}}))
                   where sink = {statements.literal(place[0])} and topic = {statements.literal(place[1])}
                     and row is not null"""
            )

    def _evolve(
        self, connection: Connection, target: statements.TargetTable, there: Mapping[str, str]
    ) -> dict[str, str]:
        """Adds and widens columns; returns the types then."""
        out = dict(there)
        for column in target.columns:
            have, want = there.get(column.name), target.types[column.name]
            name = statements.quote(column.name)
            if have is None:
                self._alter(connection, target, f"add column {name} {want}{_default(column)}", column.name)
                out[column.name] = want
                continue
            needed = types.widened(have, want)
            where = {"table": target.plain_name}
            if needed is None:
                text = f"a column of type {have} cannot hold {want}"
                raise CdcError(SCHEMA_REFUSED, text, where={**where, "column": column.name})
            if needed != have:
                schema_policy.refuse(self._output.follows, "widen", column.name, where)
                self._alter(connection, target, f"alter column {name} set data type {needed}", column.name)
                out[column.name] = needed
        place = [OwnColumn(target.position, types.BYTES)] if target.position else []
        for own in (*place, *target.own):
            if own.name not in there:
                self._alter(connection, target, f"add column {statements.clause(own)}", own.name)
                out[own.name] = own.type
        return out

    @staticmethod
    def _alter(connection: Connection, target: statements.TargetTable, change: str, column: str) -> None:
        with _altering(target, [column]):
            connection.do(f"alter table {target.name} {change}")
        log.info("altered table=%s column=%s", target.plain_name, column)


def _check_form(target: statements.TargetTable, found: FoundTable) -> None:
    where = {"table": target.plain_name, "key": ",".join(target.key)}
    if target.versions != found.versions:
        raise CdcError(SCHEMA_REFUSED, "the table was made with another output.mode", where=where)
    if found.key and set(found.key) != set(target.key):
        raise CdcError(SCHEMA_REFUSED, "the key of the table changed", where=where)


@contextlib.contextmanager
def _altering(target: statements.TargetTable, columns: Sequence[str]) -> Iterator[None]:
    """Around what alters a table. CdcError SCHEMA_REFUSED where DuckDB does not let it."""
    import duckdb

    try:
        yield
    except duckdb.Error as exc:
        error = of_alter(exc, target.plain_name, ",".join(columns))
        if error is None:
            raise
        raise error from exc


def _default(column: TargetColumn) -> str:
    """Rows that stand already got the source's default without an event; so do rows of the older shape."""
    import pyarrow as pa

    value = catalog.default_value(column)
    if value is None:
        return ""
    made = arrow_types.to_arrow(value, column, types.arrow_of(column))
    if pa.types.is_binary(made.type):
        return f" default {statements.binary(made[0].as_py())}"
    text = made.cast(pa.string())[0].as_py()
    return "" if text is None else f" default {statements.literal(text)}"
