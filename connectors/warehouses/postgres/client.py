"""psycopg's connection as a warehouse uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from cdcworker.connectors.warehouses.sql.connection import Parameters


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """One connection to a warehouse, used by one thread."""

    def ask(self, statement: str, parameters: Parameters | None = None) -> list[tuple[Any, ...]]:
        """Executes a statement and returns its rows. Without parameters no % has a meaning."""
        return self.execute(statement, parameters).fetchall()

    def one(self, statement: str, parameters: Parameters | None = None) -> tuple[Any, ...] | None:
        """Returns the first row of a statement; None: there is none."""
        return self.execute(statement, parameters).fetchone()

    def do(self, statement: str, parameters: Parameters | None = None) -> int:
        """Executes a statement and returns how many rows it changed; -1 where it is of a kind that changes none."""
        return self.execute(statement, parameters).rowcount
