"""Columns that the source drops, in PostgreSQL: see `warehouses.dropped_columns`."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.table_batch import TableBatch
from cdcworker.connectors.warehouses.column_changes import ColumnNaming
from cdcworker.connectors.warehouses.postgres import statements, type_conflicts
from cdcworker.connectors.warehouses.sql import dropped_columns
from cdcworker.connectors.warehouses.sql.dropped_columns import SettledColumns

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

log = logging.getLogger(__name__)

_APPLIED: Final = """select applied from _cdcworker.ledger where sink = %s and topic = %s and applied is not null
    order by applied desc limit 1"""


@dataclass(frozen=True, slots=True)
class _Positions:
    connection: Connection
    target: statements.TargetTable
    sink: str
    topic: str

    def applied(self) -> bytes | None:
        found = self.connection.execute(_APPLIED, (self.sink, self.topic)).fetchone()
        return None if found is None else bytes(found[0])

    def newest(self, planned: ColumnNaming) -> bytes:
        column = dropped_columns.position_column(planned, self.target.position)
        found = self.connection.execute(statements.newest(self.target, column)).fetchone() if column else None
        return b"" if found is None else bytes(found[0])


def settled(
    connection: Connection,
    target: statements.TargetTable,
    batch: TableBatch,
    planned: ColumnNaming,
    sink: str,
    newest: MutableMapping[str, bytes],
) -> SettledColumns:
    """Applies the policy for dropped columns, in the transaction of the batch's rows."""
    positions = _Positions(connection, target, sink, batch.table)
    found = dropped_columns.settled(batch, planned, target.key, positions, newest)
    if found.deleted:
        _delete(connection, target, batch.table, found.deleted, sink)
    return found


def _delete(
    connection: Connection, target: statements.TargetTable, topic: str, names: tuple[str, ...], sink: str
) -> None:
    with type_conflicts.altering(target, names):
        connection.execute(statements.drop_columns(target, names))
    # Rows that have left their key wait without it too: another column may have its name later.
    connection.execute(
        "update _cdcworker.tombstone set row = row - %s::text[] where sink = %s and topic = %s and row is not null",
        (list(names), sink, topic),
    )
    log.info("columns that the source dropped are removed table=%s columns=%s", target.plain_name, ",".join(names))
