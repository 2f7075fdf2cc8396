"""The leader's writer on Kafka: transactions that the broker refuses without the group's present generation."""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from collections.abc import Mapping, Sequence
from typing import Any

from cdcworker.coordinator.api import LogRecord, Term, TermOver, WriterFenced, WriteUnknown
from cdcworker.coordinator.kafka import errors as e
from cdcworker.coordinator.kafka.client_shutdown import destroy_client
from cdcworker.coordinator.kafka.clients import make_producer, transactional_config
from cdcworker.coordinator.kafka.compacted_log import encode
from cdcworker.coordinator.kafka.end_offsets import OpenTransaction, abort_open_transactions
from cdcworker.coordinator.kafka.leadership import proof_of
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.threads import start_thread
from confluent_kafka import KafkaError, KafkaException, TopicPartition

log = logging.getLogger(__name__)

FENCES_AT_ONCE_MAX = 8
CONNECT_S = 5.0
INIT_CALL_S = 2.0
INIT_STEP_S = 0.05
INIT_STEP_S_MAX = 0.5
PASSING = frozenset({KafkaError._TIMED_OUT, KafkaError.CONCURRENT_TRANSACTIONS})
_GRACE_S = 1.0


def leader_transactional_id(group_id: str) -> str:
    """Returns the transactional id that all leaders of a group share, so that a new one fences its predecessor."""
    return f"cdc-leader-{group_id}"


def take_over(config: Mapping[str, Any], timeout_s: float) -> Any:
    """Returns a transactional producer that has fenced all earlier ones with its id.

    librdkafka looks for the transaction coordinator only every half second while it is not connected, and also while
    the broker still aborts a predecessor's transaction. So the producer connects first, and a retry uses a new one.
    """
    deadline, step_s = time.monotonic() + timeout_s, INIT_STEP_S
    producer = make_producer(dict(config))
    with contextlib.suppress(KafkaException):  # init_transactions below raises the cause
        producer.list_topics(timeout=min(CONNECT_S, timeout_s))
    while True:
        try:
            producer.init_transactions(max(INIT_STEP_S, min(INIT_CALL_S, deadline - time.monotonic())))
        except KafkaException as exc:
            error = e.kafka_error(exc)
            is_passing = error.retriable() or error.code() in PASSING
            if not is_passing or time.monotonic() >= deadline:
                raise
            if error.code() == KafkaError.CONCURRENT_TRANSACTIONS:
                time.sleep(step_s)
                step_s = min(2 * step_s, INIT_STEP_S_MAX)
                producer = make_producer(dict(config))
        else:
            return producer


class KafkaLeaderWriter:
    """The writer of one claim. Its constructor returns once the predecessor is fenced. One thread uses it at a time."""

    def __init__(
        self,
        properties: Mapping[str, str],
        *,
        group_id: str,
        topic: str,
        coordination_topic: str,
        client_id: str,
        timeout_s: float = 10.0,
    ) -> None:
        self._topic = topic
        self._coordination = coordination_topic
        self._timeout_s = timeout_s
        config = transactional_config(
            properties,
            client_id=client_id,
            transactional_id=leader_transactional_id(group_id),
            transaction_timeout_ms=int(timeout_s * 1000),
        )
        self._producer: Any = None
        self._spent = False
        try:
            self._producer = take_over(config, timeout_s)
        except KafkaException as exc:
            self.close()
            raise e.translate(exc, "claim the leader's transactional id") from exc

    def void(self, places: Sequence[OpenTransaction]) -> None:
        """Aborts records of a predecessor that the broker left open: no worker could read past them."""
        if not places:
            return
        log.warning(
            "a transaction that was left open is aborted topic=%s records=%d",
            self._topic,
            places[0].end - places[0].stable,
        )
        try:
            abort_open_transactions(self._producer, places, self._timeout_s)
        except KafkaException as exc:
            self.close()
            raise e.translate(exc, "abort what was left open") from exc

    def write(self, records: Sequence[LogRecord], term: Term) -> None:
        """Writes all records in one transaction with the term's proof. Raises TermOver, WriterFenced or
        WriteUnknown."""
        proof = self._checked(term)
        if self._spent:
            raise WriterFenced("the writer is spent: claim again")
        in_commit = False
        try:
            self._producer.begin_transaction()
            for record in records:
                key, value, headers = encode(record)
                self._producer.produce(self._topic, value=value, key=key, headers=headers, partition=0)
            # The coordination topic stays empty, so the committed offset 0 means nothing. But before the broker adds it
            # to the transaction, it checks the member and the generation (INV-6).
            if proof is not None:
                place = TopicPartition(self._coordination, 0, 0)
                self._producer.send_offsets_to_transaction([place], proof, self._timeout_s)
            in_commit = True
            self._producer.commit_transaction(self._timeout_s)
        except (KafkaException, BufferError) as exc:
            raise self._failed(e.kafka_error(exc), in_commit) from exc

    @staticmethod
    def _checked(term: Term) -> Any:
        """Returns the proof for the broker. A term without one cannot write; the subclass for ZooKeeper overrides
        that."""
        if term.proof is None:
            raise TermOver("a term without proof cannot write")
        try:
            return proof_of(term.proof).proof
        except ValueError as exc:
            raise TermOver(str(exc)) from exc

    def _failed(self, error: KafkaError, in_commit: bool) -> TermOver | WriterFenced | WriteUnknown:
        outcome = e.write_outcome(error, in_commit=in_commit)
        log.warning("leader write failed outcome=%s error=%s", type(outcome).__name__, e.text_of(error))
        # Also after a clean abort: records that were dropped unsent can leave a gap in the producer's sequence numbers,
        # for which the broker refuses the next transaction.
        self._spent = True
        if isinstance(outcome, TermOver):
            self._abort()
        return outcome

    def _abort(self) -> None:
        try:
            self._producer.abort_transaction(self._timeout_s)
        except KafkaException as exc:
            log.warning("abort failed error=%s", e.text_of(exc))

    def close(self) -> None:
        """Drops the producer. That does not abort an open transaction: the next claim does."""
        self._spent = True
        last_reference, self._producer = [self._producer], None
        if last_reference[0] is not None:
            destroy_client(last_reference, "leader's producer")


def fence(
    properties: Mapping[str, str], transactional_ids: Sequence[str], *, client_id: str, timeout_s: float = 10.0
) -> dict[str, CdcError | None]:
    """Fences each transactional id and aborts its open transaction, up to `FENCES_AT_ONCE_MAX` in parallel.

    Returns the error of each id, None for success. librdkafka lacks Kafka's `fenceProducers`; `init_transactions` has
    the same effect. It runs in daemon threads with a common deadline, as the client's calls can hang beyond their
    time-outs.
    """
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    answers: queue.SimpleQueue[tuple[str, CdcError | None]] = queue.SimpleQueue()
    for name in transactional_ids:
        waiting.put(name)

    def work() -> None:
        while True:
            try:
                name = waiting.get_nowait()
            except queue.Empty:
                return
            answers.put((name, _fence_one(properties, name, client_id, timeout_s)))

    at_once = min(FENCES_AT_ONCE_MAX, len(transactional_ids))
    for _ in range(at_once):
        start_thread(work, name="fence")
    late = CdcError(e.TIMEOUT, "fencing was not answered in time")
    outcome: dict[str, CdcError | None] = dict.fromkeys(transactional_ids, late)
    rounds = -(-len(transactional_ids) // at_once) if at_once else 0
    deadline = time.monotonic() + timeout_s * rounds + _GRACE_S
    for _ in transactional_ids:
        try:
            name, error = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        outcome[name] = error
    return outcome


def _fence_one(
    properties: Mapping[str, str], transactional_id: str, client_id: str, timeout_s: float
) -> CdcError | None:
    try:
        config = transactional_config(properties, client_id=client_id, transactional_id=transactional_id)
        take_over(config, timeout_s)
    except KafkaException as exc:
        return e.translate(exc, "fence the transactional id")
    except CdcError as exc:
        return exc
    return None
