"""Composites as records: the stream does not say when a type's attributes change, so the catalog is asked now and then."""

from __future__ import annotations

from collections.abc import Iterable

from cdcworker.connectors.postgres.decode.table_plan import TableDecodePlan
from cdcworker.connectors.postgres.server.catalog import SourceCatalog
from cdcworker.connectors.postgres.transport.admin_connection import AdminConnection
from cdcworker.connectors.postgres.transport.server_functions import log_end


class CompositeTypes:
    """Tables whose rows are read by attributes that a type has no more, each until the stream has come to where the log
    ended when that was seen."""

    def __init__(self) -> None:
        self.until: dict[int, int] = {}
        """Such tables, and until which position of the stream."""

    def look(self, connection: AdminConnection, described: Iterable[TableDecodePlan]) -> None:
        """Compares the composite types in these plans with the catalog, and notes the tables that have other ones now."""
        plans = [plan for plan in described if plan.composites]
        wanted = {(pg.oid, -1) for plan in plans for pg in plan.composites}
        now = SourceCatalog(connection).types(wanted).types if wanted else {}
        for plan in plans:
            if any(now.get(pg.oid, pg) != pg for pg in plan.composites):
                self.until.setdefault(plan.relation.oid, log_end(connection))

    def passed(self, lsn: int) -> list[int]:
        """Tables to be planned anew for the transaction that ends at `lsn`."""
        found = [oid for oid, until in self.until.items() if lsn > until]
        for oid in found:
            del self.until[oid]
        return found
