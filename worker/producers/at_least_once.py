"""At-least-once delivery: records through a producer without transactions, positions through the fenced one after them.

A position is written when all data before it is acknowledged, so nothing is lost (INV-1). What was sent after the last
position is sent again after a failure: records repeat, in their order.

Nothing fences this producer's data. So nothing is queued without a lease, nor waits in the client for longer than the
worker's session lasts: a process that was stopped and wakes finds its lease lapsed and its queue expired.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from cdcworker.coordinator.kafka import errors as e
from cdcworker.coordinator.kafka.clients import make_producer, producer_config
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.producers.alternating import AlternatingProducer
from cdcworker.worker.producers.client_watchdog import ClientWatchdog
from cdcworker.worker.producers.transactional import ABORT_TIMEOUT_S, ENDINGS, Headers, Sender, settled
from confluent_kafka import KafkaError, KafkaException

MESSAGE_MS_MIN: Final = 1_000
MESSAGE_MS_MAX: Final = 30_000
LEASE_SHARE: Final = 0.4
"""Of the session: a task stops producing at 0.6 of it."""
FLUSH_STEP_S: Final = 1.0
SLICE: Final = 200
"""Records that are queued between two looks at the lease."""


def message_timeout_ms(session_timeout_s: float) -> int:
    return int(min(MESSAGE_MS_MAX, max(MESSAGE_MS_MIN, LEASE_SHARE * session_timeout_s * 1000)))


class DataProducer(Sender):
    """Idempotent: within its life nothing is doubled or out of order, and nothing goes on behind a gap."""

    def __init__(
        self, properties: Mapping[str, str], *, client_id: str, timeout_ms: int, watchdog: ClientWatchdog | None = None
    ) -> None:
        super().__init__(watchdog)
        self._timeout_s = timeout_ms / 1000
        self._error: tuple[KafkaError, str] | None = None
        config = settled(producer_config(properties, client_id=client_id), properties)
        config |= {
            "delivery.timeout.ms": timeout_ms,
            "enable.gapless.guarantee": True,
            "delivery.report.only.error": True,
            "on_delivery": self._delivered,
            "error_cb": self._reported,
        }
        self._producer = make_producer(config)

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None and self._error is None:
            self._error = error, message.topic() or ""

    def _reported(self, error: KafkaError) -> None:
        if error.fatal() and self._error is None:
            self._error = error, ""

    def serve(self) -> None:
        super().serve()
        self._require_delivered()

    def drain(self) -> None:
        """Returns when everything is acknowledged; raises when something is not."""
        deadline = time.monotonic() + self._timeout_s + FLUSH_STEP_S
        producer = self._usable()
        try:
            with self._guard(self._timeout_s, "wait for acknowledgements"):
                while (left := producer.flush(FLUSH_STEP_S)) and self._error is None and time.monotonic() < deadline:
                    pass
        except KafkaException as exc:
            raise self._failed(exc, "wait for acknowledgements") from exc
        self._require_delivered()
        if left:
            self._spent = True
            raise CdcError(e.TIMEOUT, f"{left} records are not acknowledged in time")

    def settle(self) -> None:
        """Waits until records under way have arrived, before a successor sends the same again; what was not sent is
        dropped."""
        if self._producer is None:
            return
        self._spent = True
        with self._guard(ABORT_TIMEOUT_S, "end what is on its way"):
            # A gap in its order is fatal to the client, and the gap is meant.
            with contextlib.suppress(*ENDINGS):
                self._producer.purge(in_queue=True, in_flight=False)
            with contextlib.suppress(*ENDINGS):
                self._producer.flush(ABORT_TIMEOUT_S)

    def _require_delivered(self) -> None:
        if self._error is not None:
            self._spent = True
            error, topic = self._error
            raise self._failed(KafkaException(error), "produce", topic or None)

    def _fatal_cause(self, error: KafkaError) -> KafkaError:
        return self._error[0] if self._error else error


class AtLeastOnceProducer:
    """The producer of a session with at-least-once delivery, made of two. `own`: topics whose records go with the position; `require_lease` raises."""

    def __init__(
        self, fenced: AlternatingProducer, data: DataProducer, own: Collection[str], require_lease: Callable[[], None]
    ) -> None:
        self.opened_at: float | None = None
        self._fenced, self._data, self._require_lease = fenced, data, require_lease
        self._own = frozenset(own)
        self._kept: list[tuple[Any, ...]] = []

    def begin(self) -> None:
        self.opened_at = time.monotonic()

    def produce(
        self, topic: str, key: bytes | None, value: bytes | None, partition: int, headers: Headers = None
    ) -> None:
        self._require_lease()
        if topic in self._own:
            self._kept.append((topic, key, value, partition, headers))
        else:
            self._data.produce(topic, key, value, partition, headers)

    def produce_all(self, records: Sequence[tuple[Any, ...]]) -> None:
        for at in range(0, len(records), SLICE):
            self._require_lease()
            self._data.produce_all(records[at : at + SLICE])
        self._data.serve()

    def serve(self) -> None:
        self._data.serve()

    def flush(self, timeout_s: float) -> None:
        self._data.flush(timeout_s)

    def commit(self) -> None:
        self._data.drain()
        kept, self._kept = self._kept, []
        if kept:
            self._fenced.begin()
            for record in kept:
                self._fenced.produce(*record)
            self._fenced.commit()
        self.opened_at = None

    def abort(self) -> None:
        self.opened_at = None
        self._data.settle()
        self._fenced.abort()

    def close(self) -> None:
        self._data.close()
        self._fenced.close()
