"""First and end offsets of partitions, and transactions that were left open in them.

A broker may complete a transaction without writing its markers to a partition that has no leader at that moment, which
holds for every partition of a broker that shuts down alone (KAFKA-20734; Kafka 4.1 to 4.3). The records then stay above
the last stable offset, and the next transaction of the same producer in that partition ends them as it ends itself:
aborted records would be committed. So whoever takes over a transactional id looks for such records and ends them.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cdcworker.coordinator.kafka import errors as e
from cdcworker.schemas.errors import CdcError
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

log = logging.getLogger(__name__)

_STEP_S: Final = 0.1
LEFT_OPEN_AFTER_S: Final = 1.0
"""A transaction counts as left open after this time: other producers' transactions end earlier, markers within ms."""
VOID_KEY: Final = b"cdcworker.void"
"""The key of a record that is only written to be aborted with its transaction; read_committed readers never see it."""


class OpenTransaction(NamedTuple):
    """Records of a partition above its last stable offset: the first one is at `stable`, the last one before `end`."""

    topic: str
    partition: int
    stable: int
    end: int


def list_offsets(
    admin: AdminClient, topic: str, partitions: Sequence[int], spec: OffsetSpec, timeout_s: float
) -> dict[int, int]:
    """Returns one offset of each partition. Transient errors, usual just after a topic was created, are retried.

    Raises CdcError of the Kafka error, or `kafka.timeout` after `timeout_s`.
    """
    # A committed read would give the last stable offset, which hides committed records above another producer's open
    # transaction: the end is the high watermark.
    specs = {TopicPartition(topic, number): spec for number in partitions}
    offsets = _offsets(admin, specs, IsolationLevel.READ_UNCOMMITTED, timeout_s)
    return {place.partition: offset for place, offset in offsets.items()}


def end_offsets(admin: AdminClient, topic: str, partitions: Sequence[int], timeout_s: float) -> dict[int, int]:
    """Returns the end offset of each partition: its high watermark."""
    return list_offsets(admin, topic, partitions, OffsetSpec.latest(), timeout_s)


def _offsets(
    admin: AdminClient, specs: Mapping[TopicPartition, OffsetSpec], isolation: IsolationLevel, timeout_s: float
) -> dict[TopicPartition, int]:
    if not specs:
        return {}
    deadline = time.monotonic() + timeout_s
    where: dict[str, str | int] = {"topic": next(iter(specs)).topic, "partitions": len(specs)}
    while True:
        left_s = max(0.1, deadline - time.monotonic())
        answers = admin.list_offsets(dict(specs), isolation_level=isolation, request_timeout=left_s)
        try:
            return {place: int(answer.result(left_s).offset) for place, answer in answers.items()}
        except KafkaException as exc:
            translated = e.translate(exc, "look up offsets of the log", where=where)
            if not translated.retriable or time.monotonic() + _STEP_S >= deadline:
                raise translated from exc
            time.sleep(_STEP_S)
            _learn_leaders(admin, specs, deadline)
        except TimeoutError as exc:
            raise CdcError(e.TIMEOUT, "offsets of the log were not answered", where=where) from exc


def _learn_leaders(admin: AdminClient, specs: Iterable[TopicPartition], deadline: float) -> None:
    """Refreshes the partition leaders: an admin client would keep asking with the old leader epoch after an
    election."""
    topics = {place.topic for place in specs}
    with contextlib.suppress(KafkaException):
        # None asks for all topics in one request.
        admin.list_topics(topics.pop() if len(topics) == 1 else None, timeout=max(0.1, deadline - time.monotonic()))


def left_open(admin: AdminClient, places: Iterable[tuple[str, int]], timeout_s: float) -> list[OpenTransaction]:
    """Returns the partitions whose records are neither committed nor aborted for `LEFT_OPEN_AFTER_S`.

    Records that arrive meanwhile do not count: only those above the last stable offset in the first and last look.
    """
    specs = {TopicPartition(*place): OffsetSpec.latest() for place in places}
    if not specs:
        return []
    ends = _offsets(admin, specs, IsolationLevel.READ_UNCOMMITTED, timeout_s)
    deadline = time.monotonic() + LEFT_OPEN_AFTER_S
    while True:
        stable = _offsets(admin, specs, IsolationLevel.READ_COMMITTED, timeout_s)
        open_transactions = [
            OpenTransaction(place.topic, place.partition, offset, ends[place])
            for place, offset in stable.items()
            if offset < ends[place]
        ]
        if not open_transactions or time.monotonic() >= deadline:
            return open_transactions
        specs = {TopicPartition(place.topic, place.partition): OffsetSpec.latest() for place in open_transactions}
        time.sleep(_STEP_S)


def abort_open_transactions(producer: Any, places: Iterable[OpenTransaction], timeout_s: float) -> None:
    """Writes and aborts a transaction over these partitions, which aborts the producer's records left open there.

    Raises KafkaException, also when a record did not reach its partition; the producer must then be dropped.
    """
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Any) -> None:
        if error is not None:
            failed.append(error)

    producer.begin_transaction()
    try:
        for place in places:
            producer.produce(place.topic, b"", VOID_KEY, place.partition, on_delivery=delivered)
            producer.poll(0)
    except BufferError as exc:
        raise KafkaException(KafkaError(KafkaError._QUEUE_FULL)) from exc
    if producer.flush(timeout_s):
        failed.append(KafkaError(KafkaError._TIMED_OUT))
    producer.abort_transaction(timeout_s)
    if failed:
        raise KafkaException(failed[0])
