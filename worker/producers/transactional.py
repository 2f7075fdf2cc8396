"""A task's transactional producer: one object per initialisation, thrown away after any failure."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import starmap
from operator import length_hint
from typing import Any, Final

from cdcworker.coordinator.kafka import errors as e
from cdcworker.coordinator.kafka.clients import make_producer, producer_config, settings, transactional_config
from cdcworker.coordinator.kafka.end_offsets import OpenTransaction, abort_open_transactions
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.producers.client_watchdog import ClientWatchdog
from confluent_kafka import KafkaError, KafkaException

log = logging.getLogger(__name__)

SPENT: Final = declare(
    "source.producer_spent",
    "transient",
    "A producer was used after a failure",
    "Nothing: the task opens a new producer and reads its position again.",
)

BROKEN: Final = declare(
    "source.producer_broken",
    "transient",
    "The Kafka client gave up its transactional producer",
    "Nothing: the task opens a new producer and reads its position again.",
)

INIT_TIMEOUT_S: Final = 30.0
INIT_STEP_S: Final = 0.05
INIT_STEP_S_MAX: Final = 1.0
COMMIT_TIMEOUT_S: Final = 30.0
ABORT_TIMEOUT_S: Final = 5.0
FLUSH_S: Final = 15.0
FATAL_CAUSE_TIMEOUT_S: Final = 1.0
QUEUE_FULL_TIMEOUT_S: Final = 30.0
QUEUE_FULL_STEP_S: Final = 0.05
LOG_LEVEL_CRITICAL: Final = 2
QUEUE_RECORDS_MAX: Final = 12_000
"""Some tens of milliseconds at full speed. The client's own bound counts bytes of records only: of small ones it would hold
twice as much memory as that. # INV-10"""
LINGER_MS: Final = 1
"""At full speed more of it saves nothing, and a lone change would wait for it."""
TAKE_OVER: Final = "take over the transactional id"
PASSING: Final = frozenset({KafkaError._TIMED_OUT, KafkaError.CONCURRENT_TRANSACTIONS})
CLIENT_MESSAGE_BYTES_MAX: Final = 128 * 1024 * 1024
"""What the client lets through. The topic's own limit decides, and only the broker knows it."""

ENDINGS: Final = (KafkaException, SystemError)
"""What a client that is given up may raise: one that turns fatal in the midst of a call returns a result and an error."""

Headers = list[tuple[str, bytes]] | None
Guard = Callable[[float, str], contextlib.AbstractContextManager[None]]
"""Watches a call: its time-out in seconds and what it does."""


def _no_guard(timeout_s: float, doing: str) -> contextlib.AbstractContextManager[None]:
    """Stands in for the watchdog of a producer that has none."""
    return contextlib.nullcontext()


def _nothing_to_release() -> None:
    """Ends the watch of a call that nobody has watched."""


def settled(config: dict[str, Any], properties: Mapping[str, str]) -> dict[str, Any]:
    """Returns the config with defaults that suit large batches, for what the operator has not set."""
    given = settings(properties, "producer")
    config.setdefault("message.max.bytes", CLIENT_MESSAGE_BYTES_MAX)
    if "log_level" not in given:
        # It would write to stderr at each try to connect; the errors that count come as exceptions.
        config["log_level"] = LOG_LEVEL_CRITICAL
    if "queue.buffering.max.messages" not in given:
        config["queue.buffering.max.messages"] = QUEUE_RECORDS_MAX
    if "linger.ms" not in given:
        # Larger batches cost both sides less.
        config["linger.ms"] = LINGER_MS
    return config


def record_bytes_max(properties: Mapping[str, str]) -> int:
    """Returns the most bytes that the client sends in one record: it has to fit into the queue as well."""
    config = settled(producer_config(properties, client_id=""), properties)
    return min(int(config["message.max.bytes"]), 1024 * int(config["queue.buffering.max.kbytes"]))


def used_after_failure() -> CdcError:
    """The error of whoever goes on with a producer that has failed."""
    return CdcError(SPENT, "the producer has failed before")


class Sender:
    """One client that records are queued into. After any error it is spent."""

    def __init__(self, watchdog: ClientWatchdog | None = None) -> None:
        self.opened_at: float | None = None
        self._spent = False
        self._guard: Guard = watchdog.guard if watchdog else _no_guard
        self._release = watchdog.release if watchdog else _nothing_to_release
        self._producer: Any = None

    def produce(
        self, topic: str, key: bytes | None, value: bytes | None, partition: int, headers: Headers = None
    ) -> None:
        """Queue one record; waits, within a bound, while the queue is full."""
        if self._spent:
            raise used_after_failure()
        try:
            self._producer.produce(topic, value, key, partition, headers=headers)
        except BufferError:
            self._produce_when_there_is_room(topic, value, key, partition, headers=headers)
        except KafkaException as exc:
            raise self._failed(exc, "produce", topic) from exc

    def produce_all(self, records: Sequence[tuple[Any, ...]]) -> None:
        """Queue records, each given as the arguments of the client's own `produce`, and serve the library."""
        if self._spent:
            raise used_after_failure()
        produce, left = self._producer.produce, iter(records)
        while True:
            try:
                # The loop runs in C: at full speed nothing else here costs as much.
                deque(starmap(produce, left), maxlen=0)
                break
            except BufferError:
                self._produce_when_there_is_room(*records[len(records) - length_hint(left) - 1])
            except KafkaException as exc:
                topic = records[len(records) - length_hint(left) - 1][0]
                raise self._failed(exc, "produce", topic) from exc
        try:
            self._producer.poll(0)
        except KafkaException as exc:
            raise self._failed(exc, "produce") from exc

    def _produce_when_there_is_room(self, topic: str, *record: Any, **headers: Any) -> None:
        deadline = time.monotonic() + QUEUE_FULL_TIMEOUT_S
        while time.monotonic() < deadline:
            self._poll(QUEUE_FULL_STEP_S)
            is_empty = not len(self._producer)
            try:
                self._producer.produce(topic, *record, **headers)
                return
            except BufferError:
                if is_empty:
                    raise self._too_large(topic) from None
            except KafkaException as exc:
                raise self._failed(exc, "produce", topic) from exc
        self._spent = True
        raise CdcError(
            e.TIMEOUT, f"the send queue stayed full for {QUEUE_FULL_TIMEOUT_S:.0f} s", where={"topic": topic}
        )

    def _too_large(self, topic: str) -> CdcError:
        self._spent = True
        text, hint = (
            "a record does not fit into the empty send queue",
            "Raise the worker's producer.queue.buffering.max.kbytes.",
        )
        return CdcError(e.RECORD_TOO_LARGE, text, where={"topic": topic}, hint=hint)

    def serve(self) -> None:
        """Give finished records back to the library; without it they count as queued."""
        if self._spent:
            raise used_after_failure()
        try:
            self._producer.poll(0)
        except KafkaException as exc:
            # Fatal errors of the client come out here as well.
            raise self._failed(exc, "produce") from exc

    def _poll(self, timeout_s: float) -> None:
        try:
            self._producer.poll(timeout_s)
        except KafkaException as exc:
            # Fatal errors of the client come out here as well.
            raise self._failed(exc, "produce") from exc

    def flush(self, timeout_s: float) -> None:
        """Wait until what is queued has reached the broker; the commit would wait for it anyway."""
        producer = self._usable()
        try:
            with self._guard(timeout_s, "flush"):
                producer.flush(timeout_s)
        except KafkaException as exc:
            raise self._failed(exc, "flush") from exc

    def close(self) -> None:
        """Drop the client and what it still has queued. An open transaction is not aborted by that."""
        producer, self._producer = self._producer, None
        self._spent = True
        if producer is None:
            return
        with self._guard(ABORT_TIMEOUT_S, "close the producer"):
            with contextlib.suppress(*ENDINGS):
                producer.purge()
            del producer

    def _usable(self) -> Any:
        if self._spent:
            raise used_after_failure()
        return self._producer

    def _failed(self, exc: KafkaException, doing: str, topic: str | None = None) -> CdcError:
        self._spent = True
        error = said = e.kafka_error(exc)
        if error.code() == KafkaError._FATAL:
            error = self._fatal_cause(error)
        elif error.code() == KafkaError._STATE:
            error = self._failed_cause(error)
        if error is not said:
            topic = None  # the cause may be a record of another topic
        if (error.fatal() or error.txn_requires_abort()) and e.code_of(error) == e.UNEXPECTED:
            # Whatever broke it, a new producer starts from what is committed.
            return CdcError(BROKEN, f"{doing}: {error.name()} ({e.text_of(error)})")
        topic = e.topic_of(error) or topic
        return e.translate(error, doing, where={"topic": topic} if topic else None)

    def _fatal_cause(self, error: KafkaError) -> KafkaError:
        """Returns the cause of an error that says only that there was a fatal one."""
        return error

    def _failed_cause(self, error: KafkaError) -> KafkaError:
        """Returns the cause of an error that says only that the transaction has failed before."""
        return error


class TransactionalProducer(Sender):
    """One transaction at a time. When the constructor returns, every predecessor is fenced (INV-5).

    The client speaks the transaction protocol that cannot tell a lost answer from a lost request. So after any error
    the object is spent: the owner makes a new one, whose `init_transactions` ends what this one left, and reads the
    committed position again. No delivery callbacks: one that raises makes a commit raise that has happened.
    """

    def __init__(
        self,
        properties: Mapping[str, str],
        transactional_id: str,
        *,
        client_id: str,
        transaction_timeout_ms: int,
        queue_kbytes_max: int | None = None,
        watchdog: ClientWatchdog | None = None,
    ) -> None:
        config = transactional_config(
            properties,
            client_id=client_id,
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
        )
        if queue_kbytes_max is not None:
            config["queue.buffering.max.kbytes"] = queue_kbytes_max
        super().__init__(watchdog)
        self._take_over(settled(config, properties))

    def _take_over(self, config: dict[str, Any]) -> None:
        """Over an open transaction the broker aborts it first and says `later`, which it means for milliseconds. The
        client would wait for half a second then; a new one asks at once."""
        deadline, step_s = time.monotonic() + INIT_TIMEOUT_S, INIT_STEP_S
        self._producer = make_producer(config)
        while True:
            try:
                with self._guard(step_s, TAKE_OVER):
                    # After a time-out the same call goes on where it was.
                    self._producer.init_transactions(step_s)
                return
            except KafkaException as exc:
                error = e.kafka_error(exc)
                is_passing = error.retriable() or error.code() in PASSING
                if not is_passing or time.monotonic() >= deadline:
                    raise self._failed(exc, TAKE_OVER) from exc
            if error.code() == KafkaError.CONCURRENT_TRANSACTIONS:
                step_s = min(2 * step_s, INIT_STEP_S_MAX)
                self._producer = make_producer(config)

    @property
    def in_transaction(self) -> bool:
        return self.opened_at is not None

    def begin(self) -> None:
        if self._spent:
            raise used_after_failure()
        try:
            # It only sets a state of the client. The broker hears of the transaction with its first record.
            self._producer.begin_transaction()
        except KafkaException as exc:
            raise self._failed(exc, "begin a transaction") from exc
        self.opened_at = time.monotonic()

    def commit(self) -> None:
        """Raises when the transaction is not known to have been committed: it may have been all the same."""
        if self._spent:
            raise used_after_failure()
        self._guard(COMMIT_TIMEOUT_S, "commit the transaction")
        try:
            self._producer.commit_transaction(COMMIT_TIMEOUT_S)
        except KafkaException as exc:
            raise self._failed(exc, "commit the transaction") from exc
        finally:
            self._release()
        self.opened_at = None

    def void(self, places: Sequence[OpenTransaction]) -> None:
        """End with an aborted transaction what a predecessor of this id has open in these partitions."""
        producer = self._usable()
        try:
            with self._guard(2 * FLUSH_S, "abort what was left open"):
                abort_open_transactions(producer, places, FLUSH_S)
        except KafkaException as exc:
            raise self._failed(exc, "abort what was left open") from exc

    def abort(self) -> None:
        """End an open transaction so that it holds back no reader. Best effort: the next initialisation does it too."""
        if self._producer is None or not self.in_transaction:
            return
        self._spent = True
        self.opened_at = None
        with self._guard(ABORT_TIMEOUT_S, "abort the transaction"), contextlib.suppress(*ENDINGS):
            self._producer.purge()
            self._producer.abort_transaction(ABORT_TIMEOUT_S)

    def _fatal_cause(self, error: KafkaError) -> KafkaError:
        """`produce` says only that there was a fatal error; a transactional call says which."""
        try:
            self._producer.abort_transaction(FATAL_CAUSE_TIMEOUT_S)
        except KafkaException as exc:
            return e.kafka_error(exc)
        return error

    def _failed_cause(self, error: KafkaError) -> KafkaError:
        """A transaction that has failed can only be aborted; whoever would begin another one is told why."""
        if not self.in_transaction:
            return error
        try:
            self._producer.begin_transaction()
        except KafkaException as exc:
            return e.kafka_error(exc)
        return error
