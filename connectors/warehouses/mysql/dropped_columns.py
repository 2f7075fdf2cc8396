"""Columns that the source drops, in MySQL: see `warehouses.dropped_columns`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from cdcworker.connectors.api.table_batch import TableBatch
from cdcworker.connectors.warehouses import dropped_columns
from cdcworker.connectors.warehouses.column_changes import ColumnNaming
from cdcworker.connectors.warehouses.mysql import statements

if TYPE_CHECKING:
    from cdcworker.connectors.mysql_client.client import Connection
    from cdcworker.connectors.warehouses.mysql.ledger import MySqlLedger


class SettledColumns(NamedTuple):
    """`deleted`: columns that are to go. `late`: those of a batch in an older shape, which the table has no more. `settled`:
    whether another batch in the same shape finds the same."""

    deleted: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    settled: bool = True


@dataclass(slots=True)
class KnownColumns:
    """`newest`: by topic the highest position that its rows had when they were looked at. What has come since is in the ledger."""

    ledger: MySqlLedger
    newest: dict[str, bytes] = field(default_factory=dict)


def settled(
    connection: Connection,
    target: statements.TargetTable,
    batch: TableBatch,
    planned: ColumnNaming,
    known: KnownColumns,
) -> SettledColumns:
    """Says what the policy for dropped columns makes of a batch; nothing is changed yet."""
    if not planned.gone and not planned.added:
        return SettledColumns()
    at = dropped_columns.position(batch)
    applied = known.ledger.applied(connection, batch.table).get(batch.table)
    if applied is not None and at <= applied:
        late = tuple(name for name in planned.added if name not in target.key)
        return SettledColumns(late=late, settled=not planned.gone and not late)
    if not planned.gone:
        return SettledColumns()
    if batch.table not in known.newest:
        known.newest[batch.table] = _newest(connection, target, planned)
    if at <= known.newest[batch.table]:
        # Offsets that were reset: the topic is read again from long before.
        return SettledColumns(settled=False)
    del known.newest[batch.table]
    return SettledColumns(planned.gone)


def _newest(connection: Connection, target: statements.TargetTable, planned: ColumnNaming) -> bytes:
    """Of the rows that are there; all are looked at."""
    names = [old for old, new in planned.names.items() if new == target.position]
    if not names:
        return b""
    found = connection.one(statements.newest(target, names[0]))
    return b"" if found is None or found[0] is None else bytes(found[0])
