"""The shape of a table that `schema.change.policy` compares, from its plan."""

from __future__ import annotations

from cdcworker.connectors.capture.tables.schema_guard import SchemaGuard, Shape
from cdcworker.connectors.mysql.decode.table_plan import TablePlan


def check_shape(guard: SchemaGuard, plan: TablePlan) -> None:
    """CdcError when the policy does not allow the shape that the table has now."""
    if guard.compares:
        guard.check(plan.name, shape_of(plan), lambda: "")


def shape_of(plan: TablePlan) -> Shape:
    """Name, type and length of each captured column, and the key. What only the catalog or only some logs say is no part of it."""
    columns = [
        [column.name, kind.code.name, kind.length, kind.scale, column.optional, list(kind.members or ())]
        for column, kind in zip(plan.table.columns, plan.types, strict=True)
    ]
    return [plan.table.table_id, columns, sorted(column.name for column in plan.table.key_columns)]
