"""Runs the load on the source in its own thread, at a steady rate, until it is done or stopped."""

from __future__ import annotations

import threading
import time

from cdcworker.schemas.threads import SupervisedThread
from cdcworker.worker.quickstart.shop import Shop, ShopSession
from cdcworker.worker.quickstart.workload import LoadStatement, Workload


class LoadGenerator(SupervisedThread):
    """Runs transactions; `transactions` None runs until `finish()`. An error ends the thread and is in `error`."""

    def __init__(self, shop: Shop, workload: Workload, *, rate: float, transactions: int | None = None) -> None:
        super().__init__(name="load")
        self.workload = workload
        self.error: Exception | None = None
        self._shop = shop
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
        found = self._shop.prepared()
        with self._shop.session() as session:
            if found is None:
                session.run([LoadStatement("ddl", statement) for statement in self._shop.dialect.schema])
            else:
                customers, orders, has_loyalty = found
                self.workload.continue_from(customers + 1, orders + 1, has_loyalty=has_loyalty)
            session.run(list(self.workload.first_rows()))

    def finish(self, timeout_s: float = 30.0) -> None:
        """Stops after the running transaction has committed."""
        self._finish.set()
        self._released.set()
        if self.ident is not None:
            self.join(timeout_s)

    def serve(self) -> None:
        try:
            with self._shop.session() as session:
                self._load(session)
        except Exception as error:  # noqa: BLE001 - whatever ends the load is shown by the main thread
            self.error = error

    def _load(self, session: ShopSession) -> None:
        due = time.monotonic()
        while not self._finish.is_set() and (
            self._transactions is None or self.workload.transactions < self._transactions
        ):
            if self.workload.transactions == self._paused_at:
                self._released.wait()
            session.run(self.workload.transaction())
            due = max(due + 1 / self._rate, time.monotonic() - 1.0)
            self._finish.wait(max(0.0, due - time.monotonic()))
