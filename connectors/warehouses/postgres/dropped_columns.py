"""Columns that the source drops, in PostgreSQL: see `warehouses.dropped_columns`."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from cdcworker.connectors.api.table_batch import TableBatch
from cdcworker.connectors.warehouses import dropped_columns
from cdcworker.connectors.warehouses.column_changes import ColumnNaming
from cdcworker.connectors.warehouses.postgres import statements, type_conflicts

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

log = logging.getLogger(__name__)

_APPLIED = """select applied from _cdcworker.ledger where sink = %s and topic = %s and applied is not null
    order by applied desc limit 1"""


class SettledColumns(NamedTuple):
    """`deleted`: columns that were. `late`: those of a batch in an older shape, which the table has no more. `settled`:
    whether another batch in the same shape finds the same."""

    deleted: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    settled: bool = True


@dataclass(slots=True)
class KnownColumns:
    """`newest`: by topic the highest position that its rows had when they were looked at. What has come since is in the ledger."""

    sink: str
    newest: dict[str, bytes] = field(default_factory=dict)


def settled(
    connection: Connection,
    target: statements.TargetTable,
    batch: TableBatch,
    planned: ColumnNaming,
    known: KnownColumns,
) -> SettledColumns:
    """Applies the policy for dropped columns, in the transaction of the batch's rows."""
    if not planned.gone and not planned.added:
        return SettledColumns()
    at = dropped_columns.position(batch)
    found = connection.execute(_APPLIED, (known.sink, batch.table)).fetchone()
    if found is not None and at <= bytes(found[0]):
        late = tuple(name for name in planned.added if name not in target.key)
        return SettledColumns(late=late, settled=not planned.gone and not late)
    if not planned.gone:
        return SettledColumns()
    if batch.table not in known.newest:
        known.newest[batch.table] = _newest(connection, target, planned)
    if at <= known.newest[batch.table]:
        # Offsets that were reset: the topic is read again from long before.
        return SettledColumns(settled=False)
    _delete(connection, target, batch.table, planned.gone, known.sink)
    del known.newest[batch.table]
    return SettledColumns(planned.gone)


def _newest(connection: Connection, target: statements.TargetTable, planned: ColumnNaming) -> bytes:
    """Of the rows that are there; all are looked at."""
    names = [old for old, new in planned.names.items() if new == target.position]
    if not names:
        return b""
    found = connection.execute(statements.newest(target, names[0])).fetchone()
    return b"" if found is None else bytes(found[0])


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
    table = f"{target.schema}.{target.table}"
    log.info("columns that the source dropped are removed table=%s columns=%s", table, ",".join(names))
