"""A compacted Kafka topic as a Log: read from its first offset to its true end, tailed, appended to."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from cdcworker.coordinator import kafka_errors as e
from cdcworker.coordinator.api import Done, Ends, JsonObject, Record
from cdcworker.coordinator.kafka_clients import (
    Reports,
    make_admin,
    make_consumer,
    make_producer,
    producer_config,
    reader_config,
    unreachable,
)
from cdcworker.coordinator.kafka_endings import empty, end, let_go
from cdcworker.coordinator.kafka_offsets import end_offsets
from cdcworker.coordinator.stalls import StallWatch, watch
from cdcworker.schemas.errors import CdcError
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition

log = logging.getLogger(__name__)

BATCH_RECORDS_MAX = 1_000
_FOLD_RECORDS_MAX = 20_000
_ANY_PARTITION = -1
_WAIT_STEP_S = 0.1
_LEADERS_S = 5.0
_SPENT = (KafkaError._MSG_TIMED_OUT, KafkaError._FATAL)


def encode(record: Record) -> tuple[bytes, bytes | None, list[tuple[str, str | bytes | None]]]:
    """Key, value and headers as they stand in Kafka."""
    value = None
    if record.value is not None:
        value = content_of(record.value)
    return record.key.encode(), value, list(record.headers.items())


def content_of(value: JsonObject) -> bytes:
    """JSON in UTF-8, in which half of a surrogate pair (of a file's name, say) stands as JSON's escape for it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="backslashreplace")


def decode(message: Message) -> Record:
    """The record of a message; raises ValueError for one that is not ours. Never quotes its content."""
    key, value = message.key(), message.value()
    if key is None:
        raise ValueError("no key")
    content = None if value is None else json.loads(value)
    if content is not None and not isinstance(content, dict):
        raise ValueError("the value is not an object")
    headers = {name: (text or b"").decode() for name, text in message.headers() or ()}
    return Record(
        key=_bytes(key).decode(),
        value=content,
        headers=headers,
        offset=message.offset() or 0,
        partition=message.partition() or 0,
        timestamp_ms=int(message.timestamp()[1]),
    )


def _bytes(key: Any) -> bytes:
    return key if isinstance(key, bytes) else str(key).encode()


class CompactedLog:
    """One topic, read_committed, every partition from its first offset. Thread-confined, `ends` excepted.

    A record that is not ours stops a strict log; otherwise it is reported and left out, because one foreign write
    must not keep all workers from starting.
    """

    def __init__(
        self,
        properties: Mapping[str, str],
        topic: str,
        *,
        client_id: str,
        partitions: Sequence[int] | None = None,
        partition_of: Callable[[str], int] | None = None,
        strict: bool = False,
        counters: bytes = b"",
    ) -> None:
        """Of keys that begin with `counters` only the last record tells anything: `read_to_end` leaves out the rest."""
        self.topic = topic
        self._counters = counters
        self._properties = properties
        self._client_id = client_id
        self._partition_of = partition_of
        self._strict = strict
        self._reports = Reports()
        self._admin = make_admin(properties, client_id=f"{client_id}-admin", reports=self._reports)
        self._partitions = tuple(partitions) if partitions is not None else self._all_partitions()
        self._positions = dict.fromkeys(self._partitions, 0)
        self._stalls: StallWatch = watch(self._admin, topic, self._partitions)
        self._producer: Any = None
        self._in_flight = 0
        self._is_stuck = False
        """A record was not delivered in time, so the client may have lost sight of the partition's leader."""
        self._consumer = make_consumer(reader_config(properties, client_id=client_id))
        with contextlib.suppress(KafkaException):
            # Without the leaders at hand the first read would wait for them in steps of half a second.
            self._consumer.list_topics(topic, timeout=_LEADERS_S)
        self._assign()

    @property
    def partitions(self) -> tuple[int, ...]:
        return self._partitions

    def _all_partitions(self, timeout_s: float = 10.0) -> tuple[int, ...]:
        try:
            found = self._admin.list_topics(self.topic, timeout=timeout_s).topics[self.topic]
        except KafkaException as exc:
            self._admin.poll(0)
            raise unreachable(self._properties, self._reports.cause(exc)) from exc
        if found.error is not None:
            raise e.translate(found.error, "look up the topic", where={"topic": self.topic})
        return tuple(sorted(found.partitions))

    def _assign(self) -> None:
        self._consumer.assign([TopicPartition(self.topic, number, OFFSET_BEGINNING) for number in self._partitions])

    # --- reading ----------------------------------------------------------------------------------------------------

    def rewind(self) -> None:
        """Read again from the first offset: a fold that missed cleaned tombstones would bring deleted keys back."""
        self._consumer.unassign()
        self._positions = dict.fromkeys(self._partitions, 0)
        self._assign()

    def reconnect(self) -> None:
        """Go on reading where it stands, with a new consumer: one that met a broker between its start and its election
        of leaders may look for a leader for ever."""
        log.warning("the consumer reads nothing and is replaced topic=%s", self.topic)
        end(self._consumer.close, "reader of a log")
        self._consumer = make_consumer(reader_config(self._properties, client_id=self._client_id))
        places = [TopicPartition(self.topic, number, at or OFFSET_BEGINNING) for number, at in self._positions.items()]
        self._consumer.assign(places)

    def ends(self, timeout_s: float) -> Ends:
        """The true end of each partition as it is now; may be called from any thread."""
        return end_offsets(self._admin, self.topic, self._partitions, timeout_s)

    def reached(self, ends: Ends) -> bool:
        """Whether everything before these ends has been handed out."""
        self._note_positions()
        return all(self._positions[number] >= end for number, end in ends.items())

    def read_to_end(self, timeout_s: float) -> Sequence[Record]:
        """Everything committed up to the end as it is now; `kafka.timeout` when nothing comes any more before that."""
        ends = self.ends(timeout_s)
        records: list[Record] = []
        counted: dict[bytes, Message] = {}
        deadline = time.monotonic() + timeout_s
        while not self.reached(ends):
            if time.monotonic() >= deadline:
                behind = sum(max(0, end - self._positions[number]) for number, end in ends.items())
                where: dict[str, str | int] = {"topic": self.topic, "behind": behind}
                raise CdcError(e.TIMEOUT, "the log could not be read to its end in time", where=where)
            messages = self._fetch(_WAIT_STEP_S, _FOLD_RECORDS_MAX)
            if messages:
                deadline = time.monotonic() + timeout_s
            records += self._decoded(self._without_counters(messages, counted))
        if counted:
            records += self._decoded(counted.values())
            records.sort(key=lambda record: (record.partition, record.offset))
        return records

    def poll(self, timeout_s: float) -> Sequence[Record]:
        """New records since the last call, waiting at most `timeout_s` for the first."""
        messages = self._fetch(timeout_s)
        if self._stalls.is_due():
            self._note_positions()
            if not messages and self._stalls.stalled(self._positions):
                self.reconnect()
        return self._decoded(messages)

    def _fetch(self, timeout_s: float, most: int = BATCH_RECORDS_MAX) -> Sequence[Message]:
        first = self._consumer.poll(timeout_s)
        # consume() with a time-out would wait for a full batch; zero takes what is there.
        return () if first is None else (first, *self._consumer.consume(most, 0))

    def _without_counters(self, messages: Iterable[Message], counted: dict[bytes, Message]) -> Iterator[Message]:
        """A log that was not cleaned for a while holds mostly these; reading their JSON would take most of the time."""
        if not self._counters:
            yield from messages
            return
        counters = self._counters
        for message in messages:
            key = message.key()
            if key is not None and key.startswith(counters) and message.error() is None:
                counted[key] = message
            else:
                yield message

    def _decoded(self, messages: Iterable[Message]) -> list[Record]:
        return [record for record in map(self._take, messages) if record is not None]

    def _take(self, message: Message) -> Record | None:
        error = message.error()
        if error is not None:
            self._take_error(message, error)
            return None
        number, offset = message.partition() or 0, message.offset() or 0
        self._positions[number] = max(self._positions[number], offset + 1)
        try:
            return decode(message)
        except (ValueError, RecursionError) as exc:
            where: dict[str, str | int] = {"topic": self.topic, "partition": number, "offset": offset}
            wrong = CdcError(e.MALFORMED_RECORD, f"not a record of ours: {type(exc).__name__}", where=where)
            if self._strict:
                raise wrong from exc
            log.error("record left out topic=%s partition=%d offset=%d error=%s", self.topic, number, offset, wrong)
            return None

    def _take_error(self, message: Message, error: KafkaError) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            number = message.partition() or 0
            # Comes once per end reached, so it is remembered; it may be the last stable offset, short of the end.
            self._positions[number] = max(self._positions[number], message.offset() or 0)
            return
        if error.fatal() or error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise e.translate(error, "read the log", where={"topic": self.topic})
        if e.code_of(error) in (*e.TELLING, e.UNEXPECTED):
            log.error("reading fails topic=%s error=%s", self.topic, error.str())
        else:
            log.debug("reading stalls topic=%s error=%s", self.topic, error.str())

    def _note_positions(self) -> None:
        # position() moves past commit markers and aborted records, which never arrive as messages.
        for place in self._consumer.position([TopicPartition(self.topic, number) for number in self._partitions]):
            if place.offset >= 0:
                self._positions[place.partition] = max(self._positions[place.partition], place.offset)

    # --- appending --------------------------------------------------------------------------------------------------

    def send(self, records: Sequence[Record], done: Done | None = None) -> None:
        """Append without waiting; `done` runs inside `serve` or `append`, once, when all are stored or one failed."""
        left = len(records)
        failure: CdcError | None = None
        self._in_flight += left

        def delivered(error: KafkaError | None, message: Message) -> None:
            nonlocal left, failure
            left -= 1
            self._in_flight -= 1
            self._is_stuck |= error is not None and (error.fatal() or error.code() in _SPENT)
            if error is not None and failure is None:
                failure = e.translate(error, "append to the log", where={"topic": self.topic})
            if left == 0 and done is not None:
                done(failure)

        for record in records:
            key, value, headers = encode(record)
            number = self._partition_of(record.key) if self._partition_of else _ANY_PARTITION
            try:
                self._pen().produce(
                    self.topic, value=value, key=key, headers=headers, partition=number, on_delivery=delivered
                )
            except (KafkaException, BufferError) as exc:
                delivered(e.kafka_error(exc), None)

    def serve(self) -> int:
        """Run what `send` is waiting for; gives the number of records still under way."""
        if self._producer is not None:
            self._poll(0)
        if self._is_stuck:
            self._drop_producer()
        self._admin.poll(0)
        return self._in_flight

    def append(self, records: Sequence[Record], timeout_s: float) -> None:
        """Unfenced append, on all in-sync replicas when it returns. After a time-out it may still happen."""
        outcome: list[CdcError | None] = []
        self.send(records, outcome.append)
        deadline = time.monotonic() + timeout_s
        while records and not outcome:
            left = deadline - time.monotonic()
            if left <= 0:
                raise CdcError(e.TIMEOUT, "the append was not acknowledged in time", where={"topic": self.topic})
            self._pen()
            self._poll(min(left, _WAIT_STEP_S))
        if outcome and outcome[0] is not None:
            raise outcome[0]

    def _poll(self, timeout_s: float) -> None:
        """A fatal error of the client comes out here once; what it had under way fails when it is dropped."""
        try:
            self._producer.poll(timeout_s)
        except KafkaException as exc:
            log.warning("the producer broke topic=%s error=%s", self.topic, e.kafka_error(exc).name())
            self._is_stuck = True

    def _drop_producer(self) -> None:
        """One that met a broker between its start and its election of leaders may look for a leader for ever; one with
        a fatal error takes nothing more."""
        held, self._producer, self._is_stuck = [self._producer], None, False
        if held[0] is not None:
            log.warning("the producer delivers nothing and is replaced topic=%s", self.topic)
            empty(held[0], 0)
            let_go(held, "producer of a log")

    def _pen(self) -> Any:
        if self._is_stuck:
            self._drop_producer()
        if self._producer is None:
            self._producer = make_producer(producer_config(self._properties, client_id=f"{self._client_id}-pen"))
        return self._producer

    def close(self) -> None:
        """Records still under way get half a second; then they may or may not have been stored."""
        if self._producer is not None:
            empty(self._producer, 0.5)
            held, self._producer = [self._producer], None
            let_go(held, "producer of a log")
        end(self._consumer.close, "reader of a log")
