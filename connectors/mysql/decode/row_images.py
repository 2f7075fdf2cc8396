"""Images of rows that lack columns, as `binlog_row_image` MINIMAL and NOBLOB make them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cdcworker.connectors.mysql.binlog.rows import UNSENT, BinlogRow
from cdcworker.connectors.mysql.decode.table_plan import TablePlan
from cdcworker.schemas.change import Op, Row


def filled(before: Row | None, after: Row | None) -> tuple[Row | None, tuple[int, ...]]:
    """Returns a new row whose values that were not logged are those from before, and the places of those that are not known."""
    if after is None or UNSENT not in after:
        return after, ()
    old: Sequence[Any] = before if before is not None else (UNSENT,) * len(after)
    values = [old[i] if value is UNSENT else value for i, value in enumerate(after)]
    unchanged = tuple(i for i, value in enumerate(values) if value is UNSENT)
    return tuple(None if value is UNSENT else value for value in values), unchanged


def lacks_values(plan: TablePlan, op: Op, row: BinlogRow, unchanged: tuple[int, ...]) -> bool:
    """Returns whether values that were not sent may be others than readers have: whatever is not sent of an insert is a default, and a
    column that is computed may have another value."""
    if op == "c" or not plan.virtual.isdisjoint(unchanged):
        return True
    return row.after is not None and plan.may_replace(row.after, unchanged)


def nulled(row: Row | None) -> Row | None:
    """Returns an old row with null for what was not logged, as its key alone is."""
    return None if row is None else tuple(None if value is UNSENT else value for value in row)
