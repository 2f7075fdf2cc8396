"""Two transactional producers that take turns: while the broker ends one's transaction, the other's is under way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cdcworker.worker.kafka_tx import Headers, TxProducer


class PairPen:
    """A session's pen. One transaction at a time as with one producer, and in the same order: the next begins when the
    broker has decided the one before. What it still does for that one, its markers, holds up readers alone.

    With one producer the next transaction's first request arrives while the markers are being written; the broker says
    `later`, which the client takes for 20 ms.

    Nothing may be read of what a predecessor wrote before both are initialised (INV-5). While `takes_turns` says
    no only the first one writes: somebody is there who would not fence the other.
    """

    def __init__(self, first: TxProducer, second: TxProducer, *, takes_turns: Callable[[], bool]) -> None:
        self._first, self._second = first, second
        self._now = first
        self._takes_turns = takes_turns

    @property
    def producers(self) -> tuple[TxProducer, TxProducer]:
        return self._first, self._second

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
        self._now.commit()
        at_first = self._now is self._first
        self._now = self._second if at_first and self._takes_turns() else self._first

    def abort(self) -> None:
        self._now.abort()

    def close(self) -> None:
        try:
            self._first.close()
        finally:
            self._second.close()
