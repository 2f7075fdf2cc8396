"""Columns that the source drops, in MySQL: see `warehouses.dropped_columns`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdcworker.connectors.warehouses.column_changes import ColumnNaming
from cdcworker.connectors.warehouses.mysql import statements
from cdcworker.connectors.warehouses.sql.dropped_columns import position_column

if TYPE_CHECKING:
    from cdcworker.connectors.mysql_client.client import MySqlConnection
    from cdcworker.connectors.warehouses.mysql.ledger import MySqlLedger


@dataclass(frozen=True, slots=True)
class LedgerPositions:
    """The positions of one topic's table, as the ledger and the table have them."""

    connection: MySqlConnection
    target: statements.TargetTable
    ledger: MySqlLedger
    topic: str

    def applied(self) -> bytes | None:
        return self.ledger.applied(self.connection, self.topic).get(self.topic)

    def newest(self, planned: ColumnNaming) -> bytes:
        column = position_column(planned, self.target.position)
        found = self.connection.one(statements.newest(self.target, column)) if column else None
        return b"" if found is None or found[0] is None else bytes(found[0])
