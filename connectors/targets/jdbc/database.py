"""What a database has to do for the sink: tables that fit, rows, a transaction around both and the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from cdcworker.connectors.targets.jdbc.changes import RowsStep
from cdcworker.connectors.targets.jdbc.ledger import LedgerSql
from cdcworker.connectors.targets.jdbc.naming import TableName
from cdcworker.connectors.targets.jdbc.shapes import RowShape
from cdcworker.connectors.warehouses.sql.connection import SqlConnection
from cdcworker.schemas.errors import CdcError


class Database(Protocol):
    """One connection to a database. One thread uses it, but for `cancel`."""

    ledger_sql: LedgerSql
    failures: tuple[type[Exception], ...]
    """What the driver raises."""

    @property
    def connection(self) -> SqlConnection:
        """The connection, opened where there is none. Raises CdcError, or one of `failures`."""

    @property
    def is_open(self) -> bool:
        """Whether there is a connection that still answers, as far as the client knows."""

    def close(self) -> None:
        """Ends the session; a transaction that is open is undone."""

    def cancel(self) -> None:
        """Makes a statement that runs now raise soon. Called by another thread."""

    def forget(self) -> None:
        """Looks at every table anew: somebody may have changed one."""

    def refresh(self) -> None:
        """A batch begins: lets go of a connection that the server may have ended because it was idle, and of tables where many are
        known."""

    def explained(self, failure: Exception) -> CdcError:
        """Returns a failure as an error with a code, without values."""

    def transaction(self) -> AbstractContextManager[Any]:
        """One transaction, undone where something is raised."""

    def prepare_ledger(self, statements: Sequence[str]) -> None:
        """Makes the ledger's tables where they are not. Outside of a transaction."""

    def prepare(self, shape: RowShape) -> None:
        """Makes the table fit a shape. Outside of a transaction. CdcError where it does not and may not be altered."""

    def write(self, rows: RowsStep) -> None:
        """Writes and deletes rows of a shape that was prepared, within the transaction."""

    def empty(self, table: TableName, column: str, position: bytes | None) -> None:
        """Deletes all rows of a table that is there; with a position those whose `column` is not above it."""

    def check(self) -> None:
        """CdcError where the database cannot be used: login, version, rights. Changes nothing."""
