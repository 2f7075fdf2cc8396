"""Where partitions begin and end, and which of them a transaction holds that nobody ends any more.

A broker may complete a transaction without having written its markers where a partition has no leader at that moment,
which is every partition of a broker that shuts down alone (KAFKA-20734; Kafka 4.1 to 4.3). The records stay behind the
last stable offset, and the next transaction of the same producer in that partition ends them in its own way: what was
aborted would be committed with it. So whoever takes over a transactional id looks, and ends them himself.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cdcworker.coordinator import kafka_errors as e
from cdcworker.schemas.errors import CdcError
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

log = logging.getLogger(__name__)

_STEP_S: Final = 0.1
PATIENCE_S: Final = 1.0
"""Transactions of others end within this, markers that are under way within milliseconds."""
VOID_KEY: Final = b"cdcworker.void"
"""Of a record that is aborted with its transaction: nobody who reads what is committed sees it."""


class LeftOpen(NamedTuple):
    """A partition with records behind its last stable offset: `stable` is the first of them, `end` is past the last."""

    topic: str
    partition: int
    stable: int
    end: int


def list_offsets(
    admin: AdminClient, topic: str, partitions: Sequence[int], spec: OffsetSpec, timeout_s: float
) -> dict[int, int]:
    """One offset of each partition; passing errors, usual just after a topic was made, are tried again."""
    # The last stable offset, which a committed read gives, hides committed data behind a transaction of
    # somebody else that is still open: the end is the high watermark.
    asked = {TopicPartition(topic, number): spec for number in partitions}
    found = _offsets(admin, asked, IsolationLevel.READ_UNCOMMITTED, timeout_s)
    return {place.partition: offset for place, offset in found.items()}


def end_offsets(admin: AdminClient, topic: str, partitions: Sequence[int], timeout_s: float) -> dict[int, int]:
    """The true end of each partition."""
    return list_offsets(admin, topic, partitions, OffsetSpec.latest(), timeout_s)


def _offsets(
    admin: AdminClient, asked: Mapping[TopicPartition, OffsetSpec], isolation: IsolationLevel, timeout_s: float
) -> dict[TopicPartition, int]:
    if not asked:
        return {}
    deadline = time.monotonic() + timeout_s
    where: dict[str, str | int] = {"topic": next(iter(asked)).topic, "partitions": len(asked)}
    while True:
        left = max(0.1, deadline - time.monotonic())
        answers = admin.list_offsets(dict(asked), isolation_level=isolation, request_timeout=left)
        try:
            return {place: int(answer.result(left).offset) for place, answer in answers.items()}
        except KafkaException as exc:
            wrong = e.translate(exc, "look up offsets of the log", where=where)
            if not wrong.retriable or time.monotonic() + _STEP_S >= deadline:
                raise wrong from exc
            time.sleep(_STEP_S)
            _learn_leaders(admin, asked, deadline)
        except TimeoutError as exc:
            raise CdcError(e.TIMEOUT, "offsets of the log were not answered", where=where) from exc


def _learn_leaders(admin: AdminClient, asked: Iterable[TopicPartition], deadline: float) -> None:
    """An admin client keeps the leaders it once learnt: after an election it would ask with the old epoch for ever."""
    topics = {place.topic for place in asked}
    with contextlib.suppress(KafkaException):
        # None: of all of them, in one request.
        admin.list_topics(topics.pop() if len(topics) == 1 else None, timeout=max(0.1, deadline - time.monotonic()))


def left_open(admin: AdminClient, places: Iterable[tuple[str, int]], timeout_s: float) -> list[LeftOpen]:
    """Which of these partitions have records that are neither committed nor aborted for `PATIENCE_S`.

    Records that came in meanwhile do not count: what is told was there at the first look, and is there still.
    """
    asked = {TopicPartition(*place): OffsetSpec.latest() for place in places}
    if not asked:
        return []
    ends = _offsets(admin, asked, IsolationLevel.READ_UNCOMMITTED, timeout_s)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        stable = _offsets(admin, asked, IsolationLevel.READ_COMMITTED, timeout_s)
        found = [
            LeftOpen(place.topic, place.partition, offset, ends[place])
            for place, offset in stable.items()
            if offset < ends[place]
        ]
        if not found or time.monotonic() >= deadline:
            return found
        asked = {TopicPartition(place.topic, place.partition): OffsetSpec.latest() for place in found}
        time.sleep(_STEP_S)


def abort_through(producer: Any, places: Iterable[LeftOpen], timeout_s: float) -> None:
    """A transaction that is aborted ends in each partition what is open there of the same producer.

    Raises KafkaException, after which the producer is spent. A record that did not come to its partition ended nothing.
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
