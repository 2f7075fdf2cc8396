"""The plans of captured tables: made of what the log and the catalog say together, once for each shape of a table."""

from __future__ import annotations

from typing import Final

from cdcworker.connectors.mysql.binlog.table_map import Column, KeyPart, TableMap
from cdcworker.connectors.mysql.catalog.completion import TableCatalog
from cdcworker.connectors.mysql.catalog.tables import CatalogTable
from cdcworker.connectors.mysql.decode.table_plan import TablePlan, TablePlanner
from cdcworker.connectors.mysql.decode.uncaptured_rows import countable

MAPS_MAX: Final = 4096
"""Tables whose last shape is remembered. # INV-10"""


class CapturedPlans:
    """The `TablePlans` of a decoder, and the completion of the table maps that its reader reads."""

    def __init__(self, planner: TablePlanner, catalog: TableCatalog) -> None:
        self._planner = planner
        self._catalog = catalog
        self._maps: dict[tuple[str, str], TableMap] = {}

    def complete(self, table: TableMap) -> TableMap:
        """Returns a table map whose rows can be read: of a captured table with all that the catalog adds, of another one so that its
        rows can be counted. Raises CdcError for a captured table that the catalog does not fit."""
        if not self._planner.captures(table.schema, table.table):
            return countable(table)
        return self._catalog.complete(table)

    def plan(self, table: TableMap) -> TablePlan | None:
        plan = self._planner.plan(table)
        if plan is not None:
            if len(self._maps) >= MAPS_MAX:
                self._maps.clear()
            self._maps[table.schema, table.table] = table
        return plan

    def named(self, database: str, name: str) -> TablePlan | None:
        """Returns the plan of the table's last shape in the log, or of the one that the catalog has."""
        if not self._planner.captures(database, name):
            return None
        known = self._maps.get((database, name))
        if known is None:
            found = self._catalog.table(database, name)
            known = None if found is None else map_of(found)
        return None if known is None else self._planner.plan(known)

    def altered(self) -> None:
        """Whatever is remembered may have another shape by now."""
        self._maps.clear()
        self._catalog.forget_all()


def map_of(table: CatalogTable) -> TableMap | None:
    """Returns what a table map would say; None for a table with a column of a type that is not known."""
    columns = []
    for column in table.columns:
        if column.type is None:
            return None
        columns.append(Column(column.name, column.type, column.is_nullable))
    places = {column.name: i for i, column in enumerate(table.columns)}
    key = tuple(KeyPart(places[name]) for name in table.primary)
    return TableMap(0, 0, table.database, table.name, tuple(columns), key)
