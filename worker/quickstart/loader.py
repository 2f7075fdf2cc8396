"""Runs the load against the source from its own thread, at a steady rate, until it is done or stopped."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from cdcworker.worker.quickstart.workload import SCHEMA, Workload

if TYPE_CHECKING:
    import psycopg


class Loader(threading.Thread):
    """`transactions` None runs until `finish()`. An error ends the thread and is in `error`."""

    def __init__(self, dsn: str, workload: Workload, *, rate: float, transactions: int | None = None) -> None:
        super().__init__(name="load", daemon=True)
        self.workload = workload
        self.error: Exception | None = None
        self._dsn = dsn
        self._rate = rate
        self._wanted = transactions
        self._finish = threading.Event()

    @property
    def done(self) -> bool:
        return not self.is_alive()

    def prepare(self) -> None:
        """Tables and first rows, on the caller's thread."""
        import psycopg

        with psycopg.connect(self._dsn) as connection:
            for statement in SCHEMA:
                connection.execute(_sql(statement))
            with connection.pipeline():
                for row in self.workload.first_rows():
                    connection.execute(_sql(row.sql), row.parameters)

    def finish(self, timeout_s: float = 30.0) -> None:
        """Stop after the running transaction has committed."""
        self._finish.set()
        if self.ident is not None:
            self.join(timeout_s)

    def run(self) -> None:
        import psycopg

        try:
            with psycopg.connect(self._dsn, application_name="shop") as connection:
                self._load(connection)
        except Exception as error:  # noqa: BLE001 - whatever ends the load is shown by the main thread
            self.error = error

    def _load(self, connection: psycopg.Connection[Any]) -> None:
        due = time.monotonic()
        while not self._finish.is_set() and (self._wanted is None or self.workload.transactions < self._wanted):
            with connection.transaction(), connection.pipeline():
                for statement in self.workload.transaction():
                    connection.execute(_sql(statement.sql), statement.parameters)
            due = max(due + 1 / self._rate, time.monotonic() - 1.0)
            self._finish.wait(max(0.0, due - time.monotonic()))


def _sql(text: str) -> Any:
    """The text as psycopg wants it: all of it is ours, none comes from outside."""
    return text
