"""Reads whole topics for sinks without Spark: every partition from the target's own offsets, no consumer group."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from cdcworker.schemas.decode import UNKNOWN_ID, RecordDecoder
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.schemas.log import SchemaLog, StoredSchema
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

log = logging.getLogger(__name__)
T = TypeVar("T")

OFFSETS_GONE: Final = declare(
    "sink.offsets_gone",
    "data",
    "Records that the sink has not written are no longer in the topic",
    "Raise the topic's retention; to go on with a gap on purpose, alter the sink's offsets.",
)
READ_FAILED: Final = declare(
    "sink.read_failed", "transient", "Kafka could not be read", "It is tried again by itself; look at the brokers."
)

LOOK_S: Final = 30.0
LOOK_MISSING_S: Final = 1.0
ANSWER_S: Final = 10.0
SCHEMA_WAIT_S: Final = 30.0
SCHEMA_AGAIN_S: Final = 1.0
MISSED_S: Final = 300.0
"""For so long after an id was waited for in vain others are waited for `SCHEMA_AGAIN_S` only: records of somebody else, each with an
id of its own, would hold up the good ones."""
_GONE: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
_MISSING: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)


class TopicReader:
    """Committed records of topics, which may appear later and grow in partitions."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        topics: Sequence[str],
        offsets: Mapping[tuple[str, int], int],
        reports_ends: bool = False,
    ) -> None:
        """Reads from `offsets` on, a partition without one from its first record. With `reports_ends` the reader notes in
        `read_to` that it has come to the end of a partition, behind the markers of transactions."""
        self._topics = tuple(topics)
        self._offsets = dict(offsets)
        self._assigned: set[tuple[str, int]] = set()
        self._look_at = 0.0
        self._read_to: dict[tuple[str, int], int] = {}
        self._consumer = Consumer({**settings, "enable.partition.eof": reports_ends})

    @property
    def read_to(self) -> Mapping[tuple[str, int], int]:
        """The next offset of each partition that has been read from."""
        return self._read_to

    @property
    def partitions(self) -> Mapping[str, int]:
        """How many partitions of each topic are read."""
        return Counter(topic for topic, _ in self._assigned)

    def read(self, count: int, timeout_s: float) -> list[Message]:
        """Returns at most `count` records, in the order of each partition."""
        self._look()
        if not self._assigned:
            time.sleep(timeout_s)
            return []
        try:
            found = self._consumer.consume(count, timeout_s)
        except KafkaException as exc:
            raise _translate(exc.args[0]) from exc
        return [message for message in found if not self._is_event(message)]

    def read_soon(self, count: int, timeout_s: float, gather_s: float = 0.0) -> list[Message]:
        """Returns at most `count` records: those that come within `gather_s` of the first. `read` waits for all of them."""
        self._look()
        if not self._assigned:
            time.sleep(timeout_s)
            return []
        try:
            first = self._consumer.poll(timeout_s)
            found = [] if first is None else [first, *self._consumer.consume(count - 1, gather_s)]
        except KafkaException as exc:
            raise _translate(exc.args[0]) from exc
        return [message for message in found if not self._is_event(message)]

    def is_at_end(self) -> bool:
        """Returns whether all that is committed in the topics now has been read, by a reader that reports ends. CdcError where
        Kafka does not tell."""
        for topic, number in self._assigned:
            try:
                found = self._consumer.get_watermark_offsets(TopicPartition(topic, number), ANSWER_S)
            except KafkaException as exc:
                raise _translate(exc.args[0]) from exc
            if not found or self._read_to.get((topic, number), found[0]) < found[1]:
                return False
        return True

    def pause(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Fetches nothing more of these partitions until they are resumed."""
        self._consumer.pause([TopicPartition(*place) for place in partitions])

    def resume(self, partitions: Iterable[tuple[str, int]]) -> None:
        self._consumer.resume([TopicPartition(*place) for place in partitions])

    def _advance(self, message: Message, offset: int) -> None:
        self._read_to[message.topic() or "", message.partition() or 0] = offset

    def close(self) -> None:
        self._consumer.close()

    def _look(self) -> None:
        """Take up partitions that are new."""
        now = time.monotonic()
        if now < self._look_at:
            return
        there: set[tuple[str, int]] = set()
        for topic in self._topics:
            there |= self._partitions(topic)
        fresh = sorted(there - self._assigned)
        if fresh:
            wanted = [TopicPartition(t, p, self._offsets.get((t, p), OFFSET_BEGINNING)) for t, p in fresh]
            self._consumer.incremental_assign(wanted)
            self._assigned |= set(fresh)
        complete = {topic for topic, _ in self._assigned} == set(self._topics)
        self._look_at = now + (LOOK_S if complete else LOOK_MISSING_S)

    def _partitions(self, topic: str) -> set[tuple[str, int]]:
        try:
            found = self._consumer.list_topics(topic, ANSWER_S).topics[topic]
        except KafkaException as exc:
            raise _translate(exc.args[0]) from exc
        if found.error is not None:
            if found.error.code() in _MISSING:
                return set()
            raise _translate(found.error)
        return {(topic, number) for number in found.partitions}

    def _is_event(self, message: Message) -> bool:
        error = message.error()
        if error is None:
            self._advance(message, (message.offset() or 0) + 1)
            return False
        if error.code() == KafkaError._PARTITION_EOF:
            self._advance(message, message.offset() or 0)
            return True
        if error.code() in _GONE:
            where = {"topic": message.topic() or "", "partition": message.partition() or 0}
            raise CdcError(OFFSETS_GONE, "the next record is not in the topic any more", where=where)
        if error.fatal():
            raise _translate(error)
        log.info("Kafka read error, going on error=%s", error.str())
        return True


def _bytes(data: Any) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def _translate(error: KafkaError) -> CdcError:
    return CdcError(READ_FAILED, error.str())


class SchemaReader:
    """Decodes framed values with the cluster's schema log, which is read on when an id is not known yet."""

    def __init__(self, settings: Mapping[str, Any], topic: str) -> None:
        self._settings = settings
        self._topic = topic
        self._reader: TopicReader | None = None
        self._log = SchemaLog()
        self._decoder = RecordDecoder(self._log)
        self._missed_until = 0.0

    def decode(self, data: bytes) -> Any:
        return self._known(lambda: self._decoder.decode(data))

    def stored(self, id: int) -> StoredSchema:
        """The schema of an id."""

        def look() -> StoredSchema:
            found = self._log.by_id(id)
            if found is None:
                raise CdcError(UNKNOWN_ID, "the schema id is not in the schema log", where={"id": id})
            return found

        return self._known(look)

    def _known(self, look: Callable[[], T]) -> T:
        """Once what it needs has been read."""
        began = time.monotonic()
        deadline = began + (SCHEMA_WAIT_S if began >= self._missed_until else SCHEMA_AGAIN_S)
        while True:
            try:
                return look()
            except CdcError as error:
                if error.code != UNKNOWN_ID:
                    raise
                if time.monotonic() > deadline:
                    if self._reader is not None and not self._reader.is_at_end():
                        # Nothing is wrong with the record.
                        raise CdcError(READ_FAILED, "the schema log could not be read to its end") from None
                    self._missed_until = time.monotonic() + MISSED_S
                    raise
            self._read_on()

    def _read_on(self) -> None:
        self._reader = self._reader or TopicReader(self._settings, (self._topic,), {}, reports_ends=True)
        for message in self._reader.read_soon(1_000, 1.0):
            place = {"partition": message.partition() or 0, "offset": message.offset() or 0}
            self._log.read(_bytes(message.key()), _bytes(message.value()), **place)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
