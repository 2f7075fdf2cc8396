"""A compacted Kafka topic as a TailedLog: read from its first offset to its end, followed, and appended to."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from cdcworker.coordinator.api import Done, Ends, JsonObject, LogRecord
from cdcworker.coordinator.kafka import errors as e
from cdcworker.coordinator.kafka.client_shutdown import close_client, destroy_client, purge
from cdcworker.coordinator.kafka.clients import (
    ConnectionReports,
    make_admin,
    make_consumer,
    make_producer,
    producer_config,
    reader_config,
    unreachable,
)
from cdcworker.coordinator.kafka.end_offsets import end_offsets
from cdcworker.coordinator.kafka.stalled_reader import StalledReaderCheck, stalled_reader_check
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.untrusted.json_text import JsonRefused, parse_object
from cdcworker.schemas.untrusted.refusals import REFUSALS
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition

log = logging.getLogger(__name__)

BATCH_RECORDS_MAX = 1_000
_FOLD_RECORDS_MAX = 20_000
_ANY_PARTITION = -1
_WAIT_STEP_S = 0.1
_LEADERS_S = 5.0
_SPENT = (KafkaError._MSG_TIMED_OUT, KafkaError._FATAL)


def encode(record: LogRecord) -> tuple[bytes, bytes | None, list[tuple[str, str | bytes | None]]]:
    """Returns key, value and headers of a record in Kafka."""
    value = None
    if record.value is not None:
        value = to_json(record.value)
    return record.key.encode(), value, list(record.headers.items())


def to_json(value: JsonObject) -> bytes:
    """Returns JSON in UTF-8. Lone surrogates (in file names, for example) become JSON escapes, and numbers that are no
    JSON become null."""
    try:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), separators=(",", ":"), ensure_ascii=False)
    return text.encode(errors="backslashreplace")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def decode(message: Message) -> LogRecord:
    """Returns the record of a message; one whose value is no object within bounds says in `refused` why.

    Raises JsonRefused for a message without a readable key or readable headers, which is no record of any key.
    """
    key: Any = message.key()
    if key is None:
        raise JsonRefused("no key")
    content, refused = _content_of(message.value())
    return LogRecord(
        key=_text(key),
        value=content,
        headers={name: _text(text or b"") for name, text in message.headers() or ()},
        offset=message.offset() or 0,
        partition=message.partition() or 0,
        timestamp_ms=int(message.timestamp()[1]),
        refused=refused,
    )


def record_of(message: Message, topic: str) -> LogRecord | None:
    """Returns the record of a message of this topic, None for one that belongs to no key. What is refused is counted and told."""
    number, offset = message.partition() or 0, message.offset() or 0
    name = topic.rpartition(".")[2]
    try:
        record = decode(message)
    except JsonRefused as exc:
        REFUSALS.add(name, str(exc), partition=number, offset=offset)
        return None
    if record.refused:
        REFUSALS.add(name, record.refused, partition=number, offset=offset, key=record.key)
    return record


def _content_of(value: Any) -> tuple[JsonObject | None, str]:
    if value is None:
        return None, ""
    try:
        return parse_object(value), ""
    except JsonRefused as exc:
        return {}, str(exc)


def _text(data: Any) -> str:
    try:
        return data.decode() if isinstance(data, bytes) else str(data)
    except UnicodeDecodeError:
        raise JsonRefused("not UTF-8") from None


class KafkaCompactedLog:
    """One topic, read committed from the first offset of each partition. An instance belongs to one thread, except
    `ends`.

    With `strict` a foreign record raises `kafka.malformed_record`; otherwise it is counted and told, and returned as a
    refused one, so that one foreign write does not keep all workers from starting.
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
        """Opens the topic. Of keys that begin with `counters` only the last record matters: `read_to_end` skips the
        others."""
        self.topic = topic
        self._counters = counters
        self._properties = properties
        self._client_id = client_id
        self._partition_of = partition_of
        self._strict = strict
        self._reports = ConnectionReports()
        self._admin = make_admin(properties, client_id=f"{client_id}-admin", reports=self._reports)
        self._partitions = tuple(partitions) if partitions is not None else self._all_partitions()
        self._positions = dict.fromkeys(self._partitions, 0)
        self._stall_check: StalledReaderCheck = stalled_reader_check(self._admin, topic, self._partitions)
        self._producer: Any = None
        self._in_flight = 0
        self._is_stuck = False
        """Tells whether the producer is to be replaced: a record timed out, so it may have lost the partition's
        leader."""
        self._consumer = make_consumer(reader_config(properties, client_id=client_id))
        with contextlib.suppress(KafkaException):
            # Without known leaders the first read would wait for them in steps of half a second.
            self._consumer.list_topics(topic, timeout=_LEADERS_S)
        self._assign()

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions that are read."""
        return self._partitions

    def _all_partitions(self, timeout_s: float = 10.0) -> tuple[int, ...]:
        try:
            metadata = self._admin.list_topics(self.topic, timeout=timeout_s).topics[self.topic]
        except KafkaException as exc:
            self._admin.poll(0)
            raise unreachable(self._properties, self._reports.cause(exc)) from exc
        if metadata.error is not None:
            raise e.translate(metadata.error, "look up the topic", where={"topic": self.topic})
        return tuple(sorted(metadata.partitions))

    def _assign(self) -> None:
        self._consumer.assign([TopicPartition(self.topic, number, OFFSET_BEGINNING) for number in self._partitions])

    # --- reading ----------------------------------------------------------------------------------------------------

    def rewind(self) -> None:
        """Starts again at the first offset: after missed tombstones, a fold would bring deleted keys back."""
        self._consumer.unassign()
        self._positions = dict.fromkeys(self._partitions, 0)
        self._assign()

    def reconnect(self) -> None:
        """Goes on reading at the present position with a new consumer.

        A consumer that connects to a broker before the broker's partitions have leaders may search for one for ever.
        """
        log.warning("the consumer reads nothing and is replaced topic=%s", self.topic)
        close_client(self._consumer.close, "reader of a log")
        self._consumer = make_consumer(reader_config(self._properties, client_id=self._client_id))
        places = [TopicPartition(self.topic, number, at or OFFSET_BEGINNING) for number, at in self._positions.items()]
        self._consumer.assign(places)

    def ends(self, timeout_s: float) -> Ends:
        """Returns the present end offset of each partition. Safe to call from any thread."""
        return end_offsets(self._admin, self.topic, self._partitions, timeout_s)

    def reached(self, ends: Ends) -> bool:
        """Tells whether all records before these ends have been returned."""
        self._note_positions()
        return all(self._positions[number] >= end for number, end in ends.items())

    def read_to_end(self, timeout_s: float) -> Sequence[LogRecord]:
        """Returns all committed records up to the present end.

        Raises CdcError `kafka.timeout` when no record arrives for `timeout_s` before the end is reached.
        """
        ends = self.ends(timeout_s)
        records: list[LogRecord] = []
        last_counters: dict[bytes, Message] = {}
        deadline = time.monotonic() + timeout_s
        while not self.reached(ends):
            if time.monotonic() >= deadline:
                behind = sum(max(0, end - self._positions[number]) for number, end in ends.items())
                where: dict[str, str | int] = {"topic": self.topic, "behind": behind}
                raise CdcError(e.TIMEOUT, "the log could not be read to its end in time", where=where)
            messages = self._fetch(_WAIT_STEP_S, _FOLD_RECORDS_MAX)
            self._reconnect_if_stalled(messages)
            if messages:
                deadline = time.monotonic() + timeout_s
            records += self._decoded(self._without_counters(messages, last_counters))
        if last_counters:
            records += self._decoded(last_counters.values())
            records.sort(key=lambda record: (record.partition, record.offset))
        return records

    def poll(self, timeout_s: float) -> Sequence[LogRecord]:
        """Returns the records since the last call; waits at most `timeout_s` for the first one."""
        messages = self._fetch(timeout_s)
        self._reconnect_if_stalled(messages)
        return self._decoded(messages)

    def _reconnect_if_stalled(self, messages: Sequence[Message]) -> None:
        """Takes what the last fetch has returned."""
        if self._stall_check.is_due():
            self._note_positions()
            if not messages and self._stall_check.stalled(self._positions):
                self.reconnect()

    def _fetch(self, timeout_s: float, records_max: int = BATCH_RECORDS_MAX) -> Sequence[Message]:
        first = self._consumer.poll(timeout_s)
        # consume() with a time-out would wait for a full batch; with zero it returns what has arrived.
        return () if first is None else (first, *self._consumer.consume(records_max, 0))

    def _without_counters(self, messages: Iterable[Message], last_counters: dict[bytes, Message]) -> Iterator[Message]:
        """Sets counters aside, the last one of each key. An uncompacted log holds mostly counters, and decoding is
        slow."""
        if not self._counters:
            yield from messages
            return
        counters = self._counters
        for message in messages:
            key = message.key()
            if key is not None and key.startswith(counters) and message.error() is None:
                last_counters[key] = message
            else:
                yield message

    def _decoded(self, messages: Iterable[Message]) -> list[LogRecord]:
        return [record for record in map(self._to_record, messages) if record is not None]

    def _to_record(self, message: Message) -> LogRecord | None:
        error = message.error()
        if error is not None:
            self._on_error(message, error)
            return None
        number, offset = message.partition() or 0, message.offset() or 0
        self._positions[number] = max(self._positions[number], offset + 1)
        record = record_of(message, self.topic)
        if self._strict and (record is None or record.refused):
            where: dict[str, str | int] = {"topic": self.topic, "partition": number, "offset": offset}
            raise CdcError(e.MALFORMED_RECORD, "a foreign record", where=where)
        return record

    def _on_error(self, message: Message, error: KafkaError) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            number = message.partition() or 0
            # It arrives once when the end is reached, which may be the last stable offset, before the end.
            self._positions[number] = max(self._positions[number], message.offset() or 0)
            return
        if error.fatal() or error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise e.translate(error, "read the log", where={"topic": self.topic})
        if e.code_of(error) in (*e.TELLING, e.UNEXPECTED):
            log.error("reading fails topic=%s error=%s", self.topic, e.text_of(error))
        else:
            log.debug("reading stalls topic=%s error=%s", self.topic, e.text_of(error))

    def _note_positions(self) -> None:
        # position() moves past commit markers and aborted records, which are never delivered.
        for place in self._consumer.position([TopicPartition(self.topic, number) for number in self._partitions]):
            if place.offset >= 0:
                self._positions[place.partition] = max(self._positions[place.partition], place.offset)

    # --- appending --------------------------------------------------------------------------------------------------

    def send(self, records: Sequence[LogRecord], done: Done | None = None) -> None:
        """Appends without waiting. `done` is called inside `serve` or `append`, once, when all are stored or one
        failed."""
        outstanding = len(records)
        failure: CdcError | None = None
        self._in_flight += outstanding

        def delivered(error: KafkaError | None, message: Message) -> None:
            nonlocal outstanding, failure
            outstanding -= 1
            self._in_flight -= 1
            self._is_stuck |= error is not None and (error.fatal() or error.code() in _SPENT)
            if error is not None and failure is None:
                failure = e.translate(error, "append to the log", where={"topic": self.topic})
            if outstanding == 0 and done is not None:
                done(failure)

        for record in records:
            key, value, headers = encode(record)
            number = self._partition_of(record.key) if self._partition_of else _ANY_PARTITION
            try:
                self._open_producer().produce(
                    self.topic, value=value, key=key, headers=headers, partition=number, on_delivery=delivered
                )
            except (KafkaException, BufferError) as exc:
                delivered(e.kafka_error(exc), None)

    def serve(self) -> int:
        """Calls the callbacks of finished appends; returns the number of records in flight."""
        if self._producer is not None:
            self._poll(0)
        if self._is_stuck:
            self._drop_producer()
        self._admin.poll(0)
        return self._in_flight

    def append(self, records: Sequence[LogRecord], timeout_s: float) -> None:
        """Appends and waits until all in-sync replicas have the records. After a time-out they may still be stored."""
        outcome: list[CdcError | None] = []
        self.send(records, outcome.append)
        deadline = time.monotonic() + timeout_s
        while records and not outcome:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise CdcError(e.TIMEOUT, "the append was not acknowledged in time", where={"topic": self.topic})
            self._open_producer()
            self._poll(min(left_s, _WAIT_STEP_S))
        if outcome and outcome[0] is not None:
            raise outcome[0]

    def _poll(self, timeout_s: float) -> None:
        """Polls the producer. A fatal error is raised here once; records in flight fail when the producer is
        dropped."""
        try:
            self._producer.poll(timeout_s)
        except KafkaException as exc:
            log.warning("the producer has failed topic=%s error=%s", self.topic, e.kafka_error(exc).name())
            self._is_stuck = True

    def _drop_producer(self) -> None:
        """Drops a producer that may search for a partition leader for ever (see `reconnect`) or has a fatal error."""
        last_reference, self._producer, self._is_stuck = [self._producer], None, False
        if last_reference[0] is not None:
            log.warning("the producer delivers nothing and is replaced topic=%s", self.topic)
            purge(last_reference[0], 0)
            destroy_client(last_reference, "producer of a log")

    def _open_producer(self) -> Any:
        if self._is_stuck:
            self._drop_producer()
        if self._producer is None:
            self._producer = make_producer(producer_config(self._properties, client_id=f"{self._client_id}-writer"))
        return self._producer

    def close(self) -> None:
        """Closes the clients. Records in flight get half a second; whether later ones are stored is unknown."""
        if self._producer is not None:
            purge(self._producer, 0.5)
            last_reference, self._producer = [self._producer], None
            destroy_client(last_reference, "producer of a log")
        close_client(self._consumer.close, "reader of a log")
