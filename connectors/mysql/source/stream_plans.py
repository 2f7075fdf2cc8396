"""The plans of a running stream: each is checked by the policy for schema changes, and the signal table is listened to."""

from __future__ import annotations

import logging

from cdcworker.connectors.capture.tables.schema_guard import SchemaGuard
from cdcworker.connectors.mysql.binlog.table_map import TableMap
from cdcworker.connectors.mysql.decode.captured_plans import CapturedPlans
from cdcworker.connectors.mysql.decode.table_plan import TablePlan
from cdcworker.connectors.mysql.decode.table_shape import check_shape
from cdcworker.schemas.change import Table

log = logging.getLogger(__name__)

SHOWN_MAX = 4096
"""Tables of which the last shape is remembered for the log. # INV-10"""


class StreamPlans:
    """The `TablePlans` of a task's decoder."""

    def __init__(self, plans: CapturedPlans, guard: SchemaGuard) -> None:
        self._plans = plans
        self._guard = guard
        self._shown: dict[tuple[str, ...], Table] = {}

    def plan(self, table: TableMap) -> TablePlan | None:
        """Raises CdcError also for a table whose shape the policy does not allow."""
        return self._checked(self._plans.plan(table))

    def named(self, database: str, name: str) -> TablePlan | None:
        return self._checked(self._plans.named(database, name))

    def altered(self) -> None:
        self._plans.altered()

    def _checked(self, plan: TablePlan | None) -> TablePlan | None:
        if plan is None:
            return None
        check_shape(self._guard, plan)
        former = self._shown.get(plan.table.path)
        if former is not None and former != plan.table:
            names = ({column.name for column in table.columns} for table in (former, plan.table))
            before, now = names
            log.info(
                "table changed table=%s added=%s dropped=%s", plan.name, sorted(now - before), sorted(before - now)
            )
        if len(self._shown) >= SHOWN_MAX:
            self._shown.clear()
        self._shown[plan.table.path] = plan.table
        return plan
