"""Runs the load on the source in its own thread, at a steady rate, until it is done or stopped."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from cdcworker.schemas.threads import SupervisedThread
from cdcworker.worker.quickstart.proof import columns_of
from cdcworker.worker.quickstart.workload import KEY_STEP, SCHEMA, Workload

if TYPE_CHECKING:
    import psycopg


class LoadGenerator(SupervisedThread):
    """Runs transactions; `transactions` None runs until `finish()`. An error ends the thread and is in `error`."""

    def __init__(self, dsn: str, workload: Workload, *, rate: float, transactions: int | None = None) -> None:
        super().__init__(name="load")
        self.workload = workload
        self.error: Exception | None = None
        self._dsn = dsn
        self._rate = rate
        self._transactions = transactions
        self._finish = threading.Event()
        self._paused_at: int | None = None
        self._released = threading.Event()

    def pause_at(self, transactions: int) -> None:
        """Pauses at this transaction until `release`, so that an event happens under load however fast the load is."""
        self._paused_at = transactions

    def release(self) -> None:
        self._released.set()

    @property
    def done(self) -> bool:
        return not self.is_alive()

    def prepare(self) -> None:
        """Creates tables and first rows in the caller's thread; existing rows are kept and the load continues after
        them."""
        import psycopg

        with psycopg.connect(self._dsn) as connection:
            if columns_of(connection, "public", "customers"):
                self._resume(connection)
                return
            for statement in SCHEMA:
                connection.execute(_sql(statement))
            with connection.pipeline():
                for row in self.workload.first_rows():
                    connection.execute(_sql(row.sql), row.parameters)

    def _resume(self, connection: psycopg.Connection[Any]) -> None:
        query = "SELECT coalesce(max(id %% %s), 0) FROM customers UNION ALL SELECT coalesce(max(id), 0) FROM orders"
        (customers,), (orders,) = connection.execute(query, (KEY_STEP,)).fetchall()
        has_loyalty = any(column.name == "loyalty" for column in columns_of(connection, "public", "customers"))
        self.workload.continue_from(customers + 1, orders + 1, has_loyalty=has_loyalty)
        with connection.pipeline():
            for row in self.workload.first_rows():
                connection.execute(_sql(row.sql), row.parameters)

    def finish(self, timeout_s: float = 30.0) -> None:
        """Stops after the running transaction has committed."""
        self._finish.set()
        self._released.set()
        if self.ident is not None:
            self.join(timeout_s)

    def serve(self) -> None:
        import psycopg

        try:
            with psycopg.connect(self._dsn, application_name="shop") as connection:
                self._load(connection)
        except Exception as error:  # noqa: BLE001 - whatever ends the load is shown by the main thread
            self.error = error

    def _load(self, connection: psycopg.Connection[Any]) -> None:
        due = time.monotonic()
        while not self._finish.is_set() and (
            self._transactions is None or self.workload.transactions < self._transactions
        ):
            if self.workload.transactions == self._paused_at:
                self._released.wait()
            with connection.transaction(), connection.pipeline():
                for statement in self.workload.transaction():
                    connection.execute(_sql(statement.sql), statement.parameters)
            due = max(due + 1 / self._rate, time.monotonic() - 1.0)
            self._finish.wait(max(0.0, due - time.monotonic()))


def _sql(text: str) -> Any:
    """Returns the text for psycopg: all of it is ours, no part comes from outside."""
    return text
