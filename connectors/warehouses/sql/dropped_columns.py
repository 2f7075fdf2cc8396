"""What the policy for dropped columns makes of a batch, by the positions that the ledger and the table have: see
`warehouses.dropped_columns`."""

from __future__ import annotations

from collections.abc import Collection, MutableMapping
from typing import NamedTuple, Protocol

from cdcworker.connectors.api.table_batch import TableBatch
from cdcworker.connectors.warehouses import dropped_columns
from cdcworker.connectors.warehouses.column_changes import ColumnNaming


class SettledColumns(NamedTuple):
    """`deleted`: columns that are to go. `late`: those of a batch in an older shape, which the table has no more. `settled`:
    whether another batch in the same shape finds the same."""

    deleted: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    settled: bool = True


class TablePositions(Protocol):
    """Where the positions of one topic's table are read, each with a statement of its own."""

    def applied(self) -> bytes | None:
        """Returns the highest position that the ledger has for the topic; None: it has none."""

    def newest(self, planned: ColumnNaming) -> bytes:
        """Returns the highest position of the table's rows, all of which are looked at; empty: none has one."""


def settled(
    batch: TableBatch,
    planned: ColumnNaming,
    key: Collection[str],
    positions: TablePositions,
    newest: MutableMapping[str, bytes],
) -> SettledColumns:
    """Says which columns a batch drops; nothing is changed yet. `newest`: by topic the highest position that its rows had when they
    were looked at; what has come since is in the ledger."""
    if not planned.gone and not planned.added:
        return SettledColumns()
    at = dropped_columns.position(batch)
    applied = positions.applied()
    if applied is not None and at <= applied:
        late = tuple(name for name in planned.added if name not in key)
        return SettledColumns(late=late, settled=not planned.gone and not late)
    if not planned.gone:
        return SettledColumns()
    if batch.table not in newest:
        newest[batch.table] = positions.newest(planned)
    if at <= newest[batch.table]:
        # Offsets that were reset: the topic is read again from long before.
        return SettledColumns(settled=False)
    del newest[batch.table]
    return SettledColumns(planned.gone)


def position_column(planned: ColumnNaming, position: str) -> str:
    """Returns what the column of positions is called before the table is altered; empty: there is none."""
    return next((old for old, new in planned.names.items() if new == position), "")
