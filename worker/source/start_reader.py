"""What a source task reads of the cluster's topics at its start, with clients that connect while it takes its id."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.kafka import errors as e
from cdcworker.coordinator.kafka.client_shutdown import close_client
from cdcworker.coordinator.kafka.clients import make_admin, make_consumer, reader_config
from cdcworker.coordinator.kafka.compacted_log import record_of
from cdcworker.coordinator.kafka.end_offsets import list_offsets
from cdcworker.coordinator.log.offset_records import OffsetRecord, parse_offset_value
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.threads import thread_pool
from cdcworker.schemas.untrusted.json_text import JsonRefused, parse_object
from cdcworker.worker.protocol.task_spec import TaskSpec
from cdcworker.worker.source.task_identity import client_id, position_key, position_partition, quick, same_key
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

log = logging.getLogger(__name__)

T = TypeVar("T")

READ_TIMEOUT_S: Final = 60.0
"""Somebody else's open transaction in the same partition may have to time out first."""
CONNECT_TIMEOUT_S: Final = 10.0
STALL_S: Final = 10.0
"""A client that came no further for so long is replaced: one that met a broker between its start and its election of
leaders may look for a leader for ever."""
WINDOWS: Final = (5_000, 200_000)
"""How far back from the end the position is looked for, step by step, before the whole partition is read: a task that
ran a moment ago has written it near the end, however old the topic is."""
STEP_S: Final = 0.05
BATCH_MAX: Final = 1_000


def ahead(call: Callable[[], T], name: str) -> Future[T]:
    """A call on a thread of its own, begun now."""
    pool = thread_pool(1, name)
    future = pool.submit(call)
    pool.shutdown(wait=False)
    return future


def drop(future: Future[T], close: Callable[[T], object]) -> None:
    """Nobody wants the result any more: it is closed when it is there."""

    def done(ended: Future[T]) -> None:
        if ended.exception() is None:
            close(ended.result())

    future.add_done_callback(done)


class StartReader:
    """One consumer and one admin client for all that a start has to know.

    It is made before the fence and connects meanwhile. What it may have read by then does not count: each reading goes
    to the end as it is when it is asked for, and that is asked behind the fence.
    """

    def __init__(self, spec: TaskSpec) -> None:
        self._spec = spec
        self.stored_at_ms: int | None = None
        """When the position was written that `position` found."""
        self.admin: AdminClient = self._new_admin()
        self._consumer: Any = self._new_consumer()
        self._connected = ahead(self._connect, "start-connect")

    def _new_admin(self) -> AdminClient:
        return make_admin(self._spec.kafka, client_id=client_id(self._spec, "start-admin"))

    def _new_consumer(self) -> Any:
        return make_consumer(reader_config(quick(self._spec), client_id=client_id(self._spec, "start")))

    def _connect(self) -> None:
        """Has both clients find the partitions' leaders. Otherwise they wait for them later, in steps of half a second
        and more."""
        topics = self._spec.topics
        try:
            for topic in (topics.offsets, topics.configs):
                self._consumer.list_topics(topic, timeout=CONNECT_TIMEOUT_S)
            self._consumer.assign([TopicPartition(topics.configs, 0, OFFSET_BEGINNING)])
            for topic in (topics.offsets, topics.configs):
                self.admin.list_topics(topic, timeout=CONNECT_TIMEOUT_S)
        except KafkaException as exc:
            raise e.translate(exc, "reach Kafka") from exc

    def configs(self) -> list[LogRecord]:
        """The config log up to its end as it is now."""
        topic = self._spec.topics.configs
        self._connected.result()
        found = []
        for message in self._read_until(TopicPartition(topic, 0, 0), self._offset(topic, 0, OffsetSpec.latest())):
            record = record_of(message, topic)
            if record is not None:
                found.append(record)
        return found

    def position(self) -> OffsetRecord | None:
        """The task's committed position, its last record in its partition up to the end as it is now; None: none."""
        topic, number = self._spec.topics.offsets, position_partition(self._spec)
        self._connected.result()
        first = self._offset(topic, number, OffsetSpec.earliest())
        end = self._offset(topic, number, OffsetSpec.latest())
        key, until = position_key(self._spec), end
        for window in (*WINDOWS, end):
            start = max(first, end - window)
            place = TopicPartition(topic, number, start)
            self._consumer.assign([place])
            found = last_of(self._read_until(place, until), key)
            if found is not None:
                position = position_of(found)
                self.stored_at_ms = int(found.timestamp()[1]) if position is not None else None
                return position
            if start == first:
                return None
            until = start
        return None

    def _offset(self, topic: str, number: int, spec: OffsetSpec) -> int:
        deadline = time.monotonic() + READ_TIMEOUT_S
        while True:
            try:
                return list_offsets(self.admin, topic, [number], spec, STALL_S)[number]
            except CdcError as exc:
                if not exc.retriable or time.monotonic() >= deadline:
                    raise
                log.warning("the client finds no offsets and is replaced topic=%s error=%s", topic, exc)
            self.admin = self._new_admin()

    def _read_until(self, place: TopicPartition, end: int) -> Iterator[Message]:
        """Committed records from `place` on, which is assigned, and before `end`."""
        topic, reached = place.topic, place.offset
        began = moved = time.monotonic()
        while reached < end:
            before = reached
            for message in self._poll(topic):
                reached = max(reached, (message.offset() or 0) + (message.error() is None))
                if message.error() is None and (message.offset() or 0) < end:
                    yield message
            # position() moves past commit markers and aborted records, which never arrive as messages.
            reached = max(reached, self._consumer.position([place])[0].offset)
            now = time.monotonic()
            if reached < end and now - began > READ_TIMEOUT_S:
                where: dict[str, str | int] = {"topic": topic, "partition": place.partition, "behind": end - reached}
                raise CdcError(e.TIMEOUT, "the log could not be read to its end in time", where=where)
            if reached > before:
                moved = now
            elif now - moved > STALL_S:
                self._reconnect(TopicPartition(topic, place.partition, reached or OFFSET_BEGINNING))
                moved = now

    def _reconnect(self, place: TopicPartition) -> None:
        log.warning("the consumer reads nothing and is replaced topic=%s offset=%d", place.topic, place.offset)
        close_client(self._consumer.close, "reader of a start")
        self._consumer = self._new_consumer()
        self._consumer.assign([place])

    def _poll(self, topic: str) -> Sequence[Message]:
        first = self._consumer.poll(STEP_S)
        if first is None:
            return ()
        # consume() with a time-out would wait for a full batch; zero takes what is there.
        messages = [first, *self._consumer.consume(BATCH_MAX, 0)]
        return [message for message in messages if message.error() is None or self._is_end(message, topic)]

    @staticmethod
    def _is_end(message: Message, topic: str) -> bool:
        error = message.error()
        assert error is not None
        if error.code() == KafkaError._PARTITION_EOF:
            return True
        if error.fatal() or error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise e.translate(error, "read the log", where={"topic": topic})
        log.warning("reading stalls topic=%s error=%s", topic, e.text_of(error))
        return False

    def close(self) -> None:
        drop(self._connected, lambda _: close_client(self._consumer.close, "reader of a start"))


def last_of(messages: Iterator[Message], key: str) -> Message | None:
    """The last record of this key. Each spelling of a key is compared once: most records are other tasks'."""
    raw = key.encode()
    same: dict[bytes | None, bool] = {raw: True, None: False}
    found = None
    for message in messages:
        other: Any = message.key()
        is_same = same.get(other)
        if is_same is None:
            is_same = same[other] = same_key(other.decode(errors="replace"), key)
        if is_same:
            found = message
    return found


def position_of(message: Message) -> OffsetRecord | None:
    """A position that cannot be read must not be taken for one that is not there (INV-9)."""
    value: Any = message.value()
    if value is None:
        return None
    try:
        return parse_offset_value(parse_object(value))
    except JsonRefused as exc:
        raise _malformed(message, str(exc)) from exc


def _malformed(message: Message, what: str) -> CdcError:
    where: dict[str, str | int] = {"topic": message.topic() or "", "offset": message.offset() or 0}
    return CdcError(e.MALFORMED_RECORD, f"the stored position was not written by a worker: {what}", where=where)
