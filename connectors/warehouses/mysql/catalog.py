"""The target's tables as they stand: read from the server's catalog, created and altered as the changes need it, before the
transaction that writes their rows."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from cdcworker.connectors.warehouses import schema_policy, target_columns
from cdcworker.connectors.warehouses.column_changes import ColumnNaming
from cdcworker.connectors.warehouses.dead_letters import of_today
from cdcworker.connectors.warehouses.dropped_columns import wanted, without
from cdcworker.connectors.warehouses.mysql import (
    column_changes,
    found_tables,
    statements,
    types,
    values,
    version_statements,
)
from cdcworker.connectors.warehouses.mysql.dropped_columns import LedgerPositions
from cdcworker.connectors.warehouses.mysql.errors import of_alter
from cdcworker.connectors.warehouses.mysql.ledger import MySqlLedger
from cdcworker.connectors.warehouses.source_types import TargetColumn
from cdcworker.connectors.warehouses.sql import catalog, dropped_columns
from cdcworker.connectors.warehouses.sql.dropped_columns import SettledColumns
from cdcworker.connectors.warehouses.sql.ledger import WRITTEN
from cdcworker.connectors.warehouses.sql.target_table import OwnColumn
from cdcworker.connectors.warehouses.target_columns import OutputForm
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit

if TYPE_CHECKING:
    from cdcworker.connectors.mysql_client.client import MySqlConnection
    from cdcworker.connectors.warehouses.mysql.found_tables import FoundTable

log = logging.getLogger(__name__)

RESERVED: Final = ("_cdcworker", "information_schema", "mysql", "performance_schema", "sys")
"""Our own bookkeeping, which a source that is a warehouse too may hold as tables, and the server's."""
_OWN: Final = catalog.OwnTypes(types.TEXT, types.BOOLEAN, "datetime(6)", "current_timestamp(6)")


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A table for batches of one shape, and its columns by the source's identity of them."""

    schema: Mapping[str, Any]
    key: tuple[str, ...]
    target: statements.TargetTable
    names: Mapping[int, str]

    def is_of(self, batch: TableBatch) -> bool:
        return self.schema is batch.schema and self.key == batch.key


class TargetCatalog:
    """The tables of the target as this session has seen them. Forgotten whenever a transaction fails."""

    def __init__(self, ledger: MySqlLedger, schema: str = "", output: OutputForm | None = None) -> None:
        self._schema = schema
        self._output = output or OutputForm()
        self._ledger = ledger
        self._newest: dict[str, bytes] = {}
        """By topic the highest position that its rows had when they were looked at for dropped columns."""
        self._prepared: dict[str, _Prepared] = {}
        self._owners: dict[tuple[str, str], str] = {}
        self._looked: set[str] = set()
        """Topics whose tables were looked at for the batches that are being applied."""

    def forget(self) -> None:
        self._prepared.clear()
        self._newest.clear()

    def begin(self) -> None:
        self._looked.clear()

    def is_old(self, topic: str) -> bool:
        """Returns whether a topic's table is known from an earlier batch: somebody may have changed it since."""
        return topic in self._prepared and topic not in self._looked

    def prepare(self, connection: MySqlConnection, batch: TableBatch) -> None:
        """Makes the table ready to take the batch: created, or with columns added and widened."""
        known = self._prepared.get(batch.table)
        if known is not None and (batch.bare or known.is_of(batch)):
            return
        with catalog.of_topic(batch):
            if batch.bare:
                self._standing(connection, batch)
            else:
                self._prepare(connection, batch)

    def placed(self, batch: TableBatch) -> tuple[statements.TargetTable | None, TableBatch]:
        """Returns the table of a batch that was prepared, None where there is none, and the batch with its columns as they are
        called there: a later batch of the same transaction may have changed them."""
        known = self._prepared.get(batch.table)
        if known is None:
            if batch.bare:
                return None, batch
            raise CdcError(SCHEMA_REFUSED, "the table is not there", where={"topic": batch.table})
        if batch.bare or known.is_of(batch):
            return known.target, batch
        batch = of_today(batch, known.names, known.names)
        gone_ = {column.name for column in wanted(batch)}.difference(known.target.types)
        batch = without(batch, gone_)
        columns = tuple(column for column in catalog.columns_of(batch) if column.name in known.target.types)
        return replace(known.target, columns=columns), batch

    def look(self, connection: MySqlConnection, batch: TableBatch) -> None:
        """Finds the table for a batch without altering anything: columns that it lacks are left out."""
        with catalog.of_topic(batch):
            target = self._wanted(connection, batch)
            found = found_tables.find(connection, target.schema, target.table)
            if found is None:
                return
            found_tables.check_key(target, found)
            names = column_changes.known(connection, (self._ledger.sink, batch.table))
            own = tuple(column for column in target.own if column.name in found.columns)
            target = replace(
                target,
                types=found.types,
                hashed=found.hashed,
                own=own,
                position=catalog.position_name(found.columns, names, self._output.position),
            )
            self._prepared[batch.table] = _Prepared({}, batch.key, target, names)

    # -- one shape ----------------------------------------------------------------------------------------------------

    def _prepare(self, connection: MySqlConnection, batch: TableBatch) -> None:
        target = self._wanted(connection, batch)
        place = (self._ledger.sink, batch.table)
        found = found_tables.find(connection, target.schema, target.table)
        if found is None:
            if connection.one(WRITTEN, place) is not None:
                raise gone(batch.table)
            with self._ledger.altering(connection):
                self._ledger.check_fence(connection)
                column_changes.forget(connection, place)
                self._create(connection, target)
            found = found_tables.find(connection, target.schema, target.table)
            assert found is not None
        found_tables.check_key(target, found)
        target = replace(target, hashed=found.hashed)
        found = self._recovered(connection, target, place, found)
        target, found, names, settled = self._follow(connection, target, found, batch)
        found_tables.check(target, found)
        target = replace(target, types=found.types, unique=found_tables.is_unique(target, found))
        self._prepared[batch.table] = _Prepared(batch.schema if settled else {}, batch.key, target, names)
        self._looked.add(batch.table)

    def _recovered(
        self, connection: MySqlConnection, target: statements.TargetTable, place: tuple[str, str], found: FoundTable
    ) -> FoundTable:
        """Ends a change of names that was begun, once nobody is about it any more; returns the table as it then stands."""
        if not column_changes.is_begun(connection, place):
            return found
        with self._ledger.altering(connection):
            self._ledger.check_fence(connection)
            now = found_tables.find(connection, target.schema, target.table)
            if now is None:
                raise gone(place[1])
            column_changes.recover(connection, place, now)
        return now

    def _wanted(self, connection: MySqlConnection, batch: TableBatch) -> statements.TargetTable:
        """Returns the table as the batch alone would have it."""
        schema, table = self._place(connection, batch)
        columns, key = catalog.columns_of(batch), catalog.key_of(batch)
        found = {column.name: types.type_of(column, column.name in key) for column in columns}
        optional = catalog.optional_key(batch)
        own = [statements.POSITION_TYPE] if self._output.versions else []
        hashed = bool(key) and (bool(optional) or not types.fits_index([*(found[name] for name in key), *own]))
        target = statements.TargetTable(
            schema,
            table,
            types.fitting(found, key),
            key,
            columns,
            own=self._own(bool(key)),
            soft=self._output.soft and bool(key),
            position=self._output.position,
            hashed=hashed,
            optional=optional,
            collation=connection.server.collation,
            versions=self._output.versions and bool(key),
        )
        target_columns.distinct(
            target.names, [target.position, statements.HASH, *(column.name for column in target.own)], batch
        )
        return target

    def _standing(self, connection: MySqlConnection, batch: TableBatch) -> None:
        """Finds the table for a batch that is bare, where there is one. Its key is named where there is one, not told."""
        place = self._place(connection, batch)
        found = found_tables.find(connection, *place)
        if found is None:
            return
        names = column_changes.known(connection, (self._ledger.sink, batch.table))
        keyed = found.versions or OP not in found.columns
        target = statements.TargetTable(
            *place, found.types, found.key or (KEY,) if keyed else (), (), hashed=found.hashed
        )
        target = replace(target, own=self._own(keyed), soft=self._output.soft and keyed)
        target = replace(
            target,
            position=catalog.position_name(found.columns, names, self._output.position),
            collation=connection.server.collation,
            versions=found.versions,
        )
        missing = [own for own in self._all_own(target) if own.name not in found.columns]
        if missing:
            with self._ledger.altering(connection):
                self._ledger.check_fence(connection)
                self._alter(connection, target, [f"add column {statements.clause(own)}" for own in missing], ())
        # Another shape is looked at anew.
        self._prepared[batch.table] = _Prepared({}, batch.key, target, names)
        self._looked.add(batch.table)

    # -- columns ------------------------------------------------------------------------------------------------------

    def _follow(
        self, connection: MySqlConnection, target: statements.TargetTable, found: FoundTable, batch: TableBatch
    ) -> tuple[statements.TargetTable, FoundTable, Mapping[int, str], bool]:
        """Gives the table's columns the names and the types that the source has for them, and drops those that it dropped: in one ALTER
        TABLE. What of the batch the table takes, the table then, its names, and whether that holds for every batch in this shape."""
        place = (self._ledger.sink, batch.table)
        known = column_changes.known(connection, place)
        positions = LedgerPositions(connection, target, self._ledger, batch.table)

        def settle(planned: ColumnNaming) -> SettledColumns:
            return dropped_columns.settled(batch, planned, target.key, positions, self._newest)

        there = [name for name in found.columns if name != statements.HASH]
        plan = catalog.followed(target, there, known, batch, self._output, settle)
        evolved = self._evolved(plan.target, found, plan.planned)
        if changes := [*column_changes.clauses(plan.planned, plan.deleted, evolved), *evolved.values()]:
            order = self._order(plan, found)
            if plan.deleted and order == list(found.columns):
                # By the order nobody could tell whether it was done: what is deleted goes in a step of its own.
                first = column_changes.of_deleted(found, plan.identities, plan.deleted)
                drops = column_changes.drops(plan.deleted)
                found = self._changed(connection, plan.target, drops, place, first, ())
                return self._follow(connection, plan.target, found, batch)
            renamed = {**plan.planned.names, **dict.fromkeys(plan.deleted)}
            change = column_changes.NameChange(tuple(order), plan.names, renamed)
            found = self._changed(connection, plan.target, changes, place, change, plan.planned.dropped)
            column_changes.tell(plan.target, plan.planned)
        elif known != plan.names:
            with self._ledger.altering(connection):
                self._ledger.check_fence(connection)
                column_changes.end(connection, place, column_changes.NameChange((), plan.names))
        return plan.target, found, plan.names, plan.settled

    def _order(self, plan: catalog.FollowedColumns[statements.TargetTable], found: FoundTable) -> list[str]:
        """Returns the names of the columns as they then stand."""
        names, own = plan.planned.names, self._all_own(plan.target)
        order = [names.get(name, name) for name in found.columns if name not in plan.deleted]
        return order + [name for name in (*plan.target.names, *(o.name for o in own)) if name not in order]

    def _changed(
        self,
        connection: MySqlConnection,
        target: statements.TargetTable,
        clauses: Sequence[str],
        place: tuple[str, str],
        change: column_changes.NameChange,
        dropped: Sequence[str],
    ) -> FoundTable:
        with self._ledger.altering(connection):
            self._ledger.check_fence(connection)
            if dropped:
                # Rows to come have no value of them. A column that is renamed takes no other change.
                bare = [f"alter column {statements.quote(name)} set default null" for name in dropped]
                self._alter(connection, target, bare, dropped)
            column_changes.begin(connection, place, change)
            hit("sink.before_alter")
            self._alter(connection, target, clauses, change.order)
            hit("sink.after_alter")
            column_changes.end(connection, place, change)
        found = found_tables.find(connection, target.schema, target.table)
        if found is None:
            raise gone(place[1])
        return found

    def _evolved(self, target: statements.TargetTable, found: FoundTable, planned: ColumnNaming) -> dict[str, str]:
        """Returns the clauses that add and widen columns, by the names that the columns have before."""
        where = {"table": target.plain_name}
        there = {planned.names[name]: column for name, column in found.columns.items() if name in planned.names}
        added = {name: target.types[name] for name in target.names if name not in there}
        room = types.ROW_BYTES_MAX - sum(types.row_bytes(column.type) for column in there.values())
        added = types.fitting(added, (), max(0, room))
        out: dict[str, str] = {}
        before = {new: old for old, new in planned.names.items()}
        for column in target.columns:
            have = there.get(column.name)
            if have is None:
                kind = statements.declared(target, added[column.name])
                default = _default(column, added[column.name])
                out[f"+{column.name}"] = f"add column {statements.quote(column.name)} {kind}{default}"
                continue
            needed = types.widened(have.type, target.types[column.name])
            if needed is None:
                text = f"a column of type {have.type} cannot hold {target.types[column.name]}"
                raise CdcError(SCHEMA_REFUSED, text, where={**where, "column": column.name})
            if types.normal(needed) != have.type:
                schema_policy.refuse(self._output.follows, "widen", column.name, where)
                out[before[column.name]] = self._widen(target, column, needed, before[column.name])
        own = {
            f"+{own.name}": f"add column {statements.clause(own)}"
            for own in self._all_own(target)
            if own.name not in there
        }
        return out | own

    @staticmethod
    def _widen(target: statements.TargetTable, column: TargetColumn, needed: str, old: str) -> str:
        """In one ALTER TABLE a column has the name of before it."""
        bare = " not null" if column.name in target.key and not target.hashed else _default(column, needed)
        kind = statements.declared(target, needed) + bare
        return f"change column {statements.quote(old)} {statements.quote(column.name)} {kind}"

    def _own(self, keyed: bool) -> tuple[OwnColumn, ...]:
        versions = self._output.versions and keyed
        out = [] if keyed and not versions else [OwnColumn(OP, "varchar(8)")]
        if versions:
            out += [OwnColumn(name, version_statements.MOMENT) for name in (VALID_FROM, VALID_TO)]
            position = OwnColumn(VALID_TO_POSITION, statements.POSITION_TYPE)
            out += [position, OwnColumn(IS_CURRENT, types.BOOLEAN)]
        return (*out, *catalog.own_columns(self._output, _OWN, keyed))

    @staticmethod
    def _all_own(target: statements.TargetTable) -> list[OwnColumn]:
        place = [OwnColumn(target.position, statements.POSITION_TYPE)] if target.position else []
        return [*place, *target.own]

    # -- tables -------------------------------------------------------------------------------------------------------

    def _place(self, connection: MySqlConnection, batch: TableBatch) -> tuple[str, str]:
        place = catalog.target_place(batch, self._schema)
        if place[0].lower() in RESERVED:
            raise catalog.reserved(place, batch.table)
        name = (place[0].lower(), place[1].lower()) if connection.server.folds else place
        catalog.own_place(self._owners, name, place, batch.table)
        return place

    def _create(self, connection: MySqlConnection, target: statements.TargetTable) -> None:
        query = "select count(*) from information_schema.schemata where schema_name = %s"
        found = connection.one(query, (target.schema,))
        if not found or not found[0]:
            connection.do(f"create database if not exists {statements.quote(target.schema)}")
        with _altering(target, ()):
            connection.do(statements.create_table(target))
        log.info("created table=%s columns=%d", target.plain_name, len(target.columns))

    @staticmethod
    def _alter(
        connection: MySqlConnection, target: statements.TargetTable, clauses: Sequence[str], columns: Sequence[str]
    ) -> None:
        with _altering(target, columns):
            connection.do(f"alter table {target.name} {', '.join(clauses)}")
        log.info("altered table=%s changes=%d", target.plain_name, len(clauses))


@contextlib.contextmanager
def _altering(target: statements.TargetTable, columns: Sequence[str]) -> Iterator[None]:
    """Around what alters a table. CdcError SCHEMA_REFUSED where the server does not let it."""
    import pymysql

    try:
        yield
    except pymysql.Error as exc:
        error = of_alter(exc, target.plain_name, ",".join(columns))
        if error is None:
            raise
        raise error from exc


def _default(column: TargetColumn, kind: str) -> str:
    """Rows that stand already got the source's default without an event; so do rows of the older shape. A long text takes an
    expression for its default, on every server."""
    value = catalog.default_value(column)
    made = None if value is None else values.to_mysql(value, column, kind)[0].as_py()
    if made is None:
        return ""
    text = statements.binary(made) if isinstance(made, bytes) else statements.literal(made)
    return f" default ({text})" if kind in (types.TEXT, types.BYTES, types.JSON) else f" default {text}"
