"""Two transactional producers that take turns: while the broker ends one's transaction, the other's is under way."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from cdcworker.coordinator import kafka_errors as e
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.kafka_tx import COMMIT_TIMEOUT_S, Headers, TxProducer
from cdcworker.worker.pen import Pen
from cdcworker.worker.progress import OWN
from cdcworker.worker.watchdog import CHECK_S, GRACE_S

SETTLE_S_MAX = COMMIT_TIMEOUT_S + GRACE_S + 3 * CHECK_S
"""The watchdog of the call comes first."""


class PairPen:
    """A session's pen. Transactions in their order: the next begins when every record of the one before stands in the
    broker's log, and its commit is asked for when the one before is known to be committed. So none is ever committed
    behind one that is not, and no record overtakes another.

    With one producer the next transaction's first request arrives while the markers are being written; the broker says
    `later`, which the client takes for 20 ms.

    Nothing may be read of what a predecessor wrote before both are initialised (INV-5). While `takes_turns` says
    no only the first one writes: somebody is there who would not fence the other.
    """

    def __init__(self, first: TxProducer, second: TxProducer, *, takes_turns: Callable[[], bool]) -> None:
        self._first, self._second = first, second
        self._now = first
        self._takes_turns = takes_turns
        self._committer = Pen("commit")
        self._decision: Future[None] | None = None

    @property
    def opened_at(self) -> float | None:
        return self._now.opened_at

    def begin(self) -> None:
        self._now.begin()

    def produce(
        self, topic: str, key: bytes | None, value: bytes | None, partition: int, headers: Headers = None
    ) -> None:
        self._now.produce(topic, key, value, partition, headers)

    def produce_all(self, records: Sequence[tuple[Any, ...]]) -> None:
        self._now.produce_all(records)

    def serve(self) -> None:
        self._now.serve()

    def flush(self, timeout_s: float) -> None:
        self._now.flush(timeout_s)

    def commit(self) -> None:
        """Returns when it is decided, or when the other producer may begin; `settle` waits for the rest."""
        self.settle()
        ended, at_first = self._now, self._now is self._first
        other = self._second if at_first and self._takes_turns() else self._first
        if other is ended or not ended.is_sent:
            ended.commit()
        else:
            decision = self._decision = Future[None]()
            self._committer.do(lambda: _decide(decision, lambda: ended.commit(beside=True)))
        self._now = other

    @property
    def is_decided(self) -> bool:
        return self._decision is None or self._decision.done()

    def settle(self) -> None:
        decision, self._decision = self._decision, None
        if decision is None:
            return
        OWN.beat("commit the transaction", SETTLE_S_MAX)
        try:
            decision.result(SETTLE_S_MAX)
        except TimeoutError as exc:
            raise CdcError(e.TIMEOUT, "commit the transaction: no answer") from exc

    def abort(self) -> None:
        self._await()
        for producer in (self._first, self._second):
            producer.abort()

    def close(self) -> None:
        self._await()
        self._committer.end()
        try:
            self._first.close()
        finally:
            self._second.close()

    def _await(self) -> None:
        """No call of a producer is under way any more. How it ended the next owner reads from the log."""
        with contextlib.suppress(Exception):
            self.settle()


def _decide(decision: Future[None], commit: Callable[[], None]) -> None:
    try:
        commit()
    except BaseException as exc:  # noqa: BLE001 - it is the session's
        decision.set_exception(exc)
    else:
        decision.set_result(None)
