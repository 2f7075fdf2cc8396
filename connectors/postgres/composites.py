"""Composites as records: the stream does not say when a type's attributes change, so the catalog is asked now and then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdcworker.connectors.postgres.catalog import Catalog
from cdcworker.connectors.postgres.standby import log_end

if TYPE_CHECKING:
    from cdcworker.connectors.postgres.session import Session


class Composites:
    """Tables whose rows are read by attributes that a type has no more, each until the stream has come to where the log
    ended when that was seen."""

    def __init__(self) -> None:
        self._until: dict[int, int] = {}

    @property
    def waiting(self) -> bool:
        return bool(self._until)

    def look(self, session: Session) -> None:
        if session.settings.modes.composite != "record" or not session.changes or not session.snapshot:
            return
        described = map(session.changes.plan, session.snapshot.progress.known())
        plans = [plan for plan in described if plan and plan.composites]
        wanted = {(pg.oid, -1) for plan in plans for pg in plan.composites}
        now = Catalog(session.catalog).types(wanted).types if wanted else {}
        for plan in plans:
            if any(now.get(pg.oid, pg) != pg for pg in plan.composites):
                self._until.setdefault(plan.relation.oid, log_end(session.catalog))

    def passed(self, lsn: int) -> list[int]:
        """Tables to be planned anew for the transaction that ends at `lsn`."""
        found = [oid for oid, until in self._until.items() if lsn > until]
        for oid in found:
            del self._until[oid]
        return found
