"""Two transactional producers that take turns: while the broker ends one's transaction, the other's is under way."""

from __future__ import annotations

from collections.abc import Callable

from cdcworker.worker.producers.transactional import TransactionalProducer


class AlternatingProducer:
    """The producer of a session. One transaction at a time as with one producer, and in the same order: the next begins when the
    broker has decided the one before. What it still does for that one, its markers, holds up readers alone.

    With one producer the next transaction's first request arrives while the markers are being written; the broker says
    `later`, which the client takes for 20 ms.

    Nothing may be read of what a predecessor wrote before both are initialised (INV-5). While `takes_turns` says
    no only the first one writes: somebody is there who would not fence the other.
    """

    def __init__(
        self, first: TransactionalProducer, second: TransactionalProducer, *, takes_turns: Callable[[], bool]
    ) -> None:
        self._first, self._second = first, second
        self._takes_turns = takes_turns
        self._use(first)

    def _use(self, producer: TransactionalProducer) -> None:
        """From now on records go to this one: its methods are this object's, so that a record costs no further call."""
        self._now = producer
        self.opened_at: float | None = None
        self.produce = producer.produce
        self.produce_all = producer.produce_all
        self.serve = producer.serve
        self.flush = producer.flush

    @property
    def producers(self) -> tuple[TransactionalProducer, TransactionalProducer]:
        return self._first, self._second

    def begin(self) -> None:
        self._now.begin()
        self.opened_at = self._now.opened_at

    def commit(self) -> None:
        self._now.commit()
        at_first = self._now is self._first
        self._use(self._second if at_first and self._takes_turns() else self._first)

    def abort(self) -> None:
        self.opened_at = None
        self._now.abort()

    def close(self) -> None:
        try:
            self._first.close()
        finally:
            self._second.close()
