"""The leader's pen: transactions that the broker refuses unless the writer still holds the group's generation."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from cdcworker.coordinator import kafka_errors as e
from cdcworker.coordinator.api import Fenced, Record, Stale, Term, Unknown
from cdcworker.coordinator.kafka_clients import make_producer, transactional_config
from cdcworker.coordinator.kafka_endings import let_go
from cdcworker.coordinator.kafka_group import proof_of
from cdcworker.coordinator.kafka_log import encode
from cdcworker.coordinator.kafka_offsets import LeftOpen, abort_through
from cdcworker.schemas.errors import CdcError
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
    return f"cdc-leader-{group_id}"


def take_over(config: Mapping[str, Any], timeout_s: float) -> Any:
    """A transactional producer whose predecessors are fenced.

    The client looks for its coordinator only every half second while it has no connection yet, and as seldom while
    the broker still aborts what a predecessor left open: so it is connected first, and a new one asks again at once.
    """
    deadline, step_s = time.monotonic() + timeout_s, INIT_STEP_S
    producer = make_producer(dict(config))
    with contextlib.suppress(KafkaException):  # the call below says why
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


class KafkaWriter:
    """One per claim, used by one thread at a time: when the constructor returns, the predecessor is fenced."""

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

    def void(self, places: Sequence[LeftOpen]) -> None:
        """End as aborted what a predecessor decided and the broker did not end; it holds back everybody's reading."""
        if not places:
            return
        log.warning(
            "what the broker had left open is aborted topic=%s records=%d",
            self._topic,
            places[0].end - places[0].stable,
        )
        try:
            abort_through(self._producer, places, self._timeout_s)
        except KafkaException as exc:
            self.close()
            raise e.translate(exc, "abort what was left open") from exc

    def write(self, records: Sequence[Record], term: Term) -> None:
        """All records in one transaction with the term's proof. Raises Stale, Fenced or Unknown."""
        proof = self._checked(term)
        if self._spent:
            raise Fenced("the writer is spent: claim again")
        in_commit = False
        try:
            self._producer.begin_transaction()
            for record in records:
                key, value, headers = encode(record)
                self._producer.produce(self._topic, value=value, key=key, headers=headers, partition=0)
            # The coordination topic stays empty: committing its offset 0 says nothing, but the broker checks the
            # member and the generation before it takes it into the transaction (INV-6).
            if proof is not None:
                place = TopicPartition(self._coordination, 0, 0)
                self._producer.send_offsets_to_transaction([place], proof, self._timeout_s)
            in_commit = True
            self._producer.commit_transaction(self._timeout_s)
        except (KafkaException, BufferError) as exc:
            raise self._failed(e.kafka_error(exc), in_commit) from exc

    @staticmethod
    def _checked(term: Term) -> Any:
        """The proof for the broker; a term without one cannot write, unless its election has another way."""
        if term.proof is None:
            raise Stale("a term without proof cannot write")
        try:
            return proof_of(term.proof).proof
        except ValueError as exc:
            raise Stale(str(exc)) from exc

    def _failed(self, error: KafkaError, in_commit: bool) -> Stale | Fenced | Unknown:
        outcome = e.write_outcome(error, in_commit=in_commit)
        log.warning("leader write failed outcome=%s error=%s", type(outcome).__name__, error.str())
        # After a clean refusal the producer is as good as before; after anything else nobody knows what it holds.
        if not (isinstance(outcome, Stale) and self._abort()):
            self._spent = True
        return outcome

    def _abort(self) -> bool:
        try:
            self._producer.abort_transaction(self._timeout_s)
        except KafkaException as exc:
            log.warning("abort failed error=%s", exc)
            return False
        return True

    def close(self) -> None:
        """Drop the producer. An open transaction is not aborted by that: the next claim does it."""
        self._spent = True
        held, self._producer = [self._producer], None
        if held[0] is not None:
            let_go(held, "leader's producer")


def fence(
    properties: Mapping[str, str], transactional_ids: Sequence[str], *, client_id: str, timeout_s: float = 10.0
) -> dict[str, CdcError | None]:
    """Take over each id for a moment: who used it is fenced, what it left open is aborted. In parallel, bounded.

    Kafka's own call for this is missing from the client, `init_transactions` has the same effect. The threads are
    daemons with a common deadline, since the client's calls can hang beyond their time-outs.
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
        threading.Thread(target=work, name="fence", daemon=True).start()
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
