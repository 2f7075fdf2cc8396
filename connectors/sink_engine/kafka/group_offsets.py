"""Offsets that a group of consumers has committed, for a group that nobody joins."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from cdcworker.connectors.sink_engine.kafka.brokers import REQUEST_S_MAX, client_settings, refused
from cdcworker.connectors.sink_errors import KAFKA_UNREACHABLE
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.threads import start_thread

READ: Final = "the offsets of the sink's group cannot be read"
COMMITTED: Final = "the offsets of the sink's group cannot be committed"
MOVING: Final = (14, 15, 16)
"""Kafka's numbers for a group whose broker is being chosen, or loads it: a new cluster's first group takes a second."""
UNKNOWN: Final = 3
"""Kafka's number for a topic that there is not."""
POLL_S: Final = 0.05


class OffsetCommit:
    """Offsets on their way to the broker."""

    def __init__(self, future: Future[CdcError | None]) -> None:
        self._future = future

    def done(self) -> bool:
        return self._future.done()

    def error(self) -> CdcError | None:
        """Waits until it is done."""
        try:
            return self._future.result(REQUEST_S_MAX)
        except TimeoutError:
            return CdcError(KAFKA_UNREACHABLE, COMMITTED)


class OffsetGroup:
    """Reads and commits offsets of a group with a consumer that subscribes to nothing: the same calls of an Admin client
    crash at times."""

    def __init__(self, kafka: Mapping[str, str], name: str) -> None:
        from confluent_kafka import Consumer

        own = {"group.id": name, "enable.auto.commit": False, "log_level": 3}
        self._consumer: Any = Consumer({**client_settings(kafka), **own})
        self._name = name
        self._busy = threading.Lock()

    def committed(self, topics: Collection[str] | None) -> dict[tuple[str, int], tuple[int, str]]:
        """Offset and note of each partition of these topics, or of all that there are."""
        with self._busy:
            found = self._repeated(lambda: self._committed(topics), READ)
        return {(part.topic, part.partition): (part.offset, part.metadata or "") for part in found if part.offset >= 0}

    def commit(self, offsets: Mapping[tuple[str, int], int], note: str) -> OffsetCommit:
        from confluent_kafka import TopicPartition

        parts = [TopicPartition(topic, number, at, note) for (topic, number), at in offsets.items()]
        future: Future[CdcError | None] = Future()
        self._start(lambda: future.set_result(self._commit(parts)))
        return OffsetCommit(future)

    def close(self) -> None:
        """Closes the consumer after the commits that are under way; returns at once."""
        self._start(self._consumer.close)

    def _start(self, work: Callable[[], None]) -> None:
        """Has a thread do the work, one after the other. The process may end meanwhile."""

        def run() -> None:
            with self._busy:
                work()

        start_thread(run, name="group")

    def _committed(self, topics: Collection[str] | None) -> Sequence[Any]:
        from confluent_kafka import TopicPartition

        there = self._consumer.list_topics(timeout=REQUEST_S_MAX).topics
        wanted = {name: topic for name, topic in there.items() if topics is None or name in topics}
        for name, topic in wanted.items():
            # One that cannot be looked at is not one of which nothing was written.
            if topics is not None and topic.error is not None and topic.error.code() != UNKNOWN:
                raise refused(topic.error, READ, {"topic": name})
        asked = [
            TopicPartition(name, number)
            for name, topic in wanted.items()
            if topic.error is None
            for number in topic.partitions
        ]
        found: Sequence[Any] = self._consumer.committed(asked, timeout=REQUEST_S_MAX) if asked else []
        return found

    def _commit(self, parts: Sequence[Any]) -> CdcError | None:
        try:
            self._repeated(lambda: self._consumer.commit(offsets=parts, asynchronous=False), COMMITTED)
        except CdcError as exc:
            return exc
        except Exception as exc:  # noqa: BLE001 - whoever asks must hear of it: a commit is asked after, not waited for
            return CdcError(KAFKA_UNREACHABLE, f"{COMMITTED}: {type(exc).__name__}")
        return None

    def _repeated(self, ask: Callable[[], Sequence[Any]], doing: str) -> Sequence[Any]:
        """Returns the answer, asking again while the group's broker is being chosen."""
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + REQUEST_S_MAX
        while True:
            try:
                found = ask()
                error = next((part.error for part in found if part.error is not None), None)
            except KafkaException as exc:
                found, error = [], exc.args[0]
            if error is None:
                return found
            if error.code() not in MOVING or time.monotonic() > deadline:
                raise refused(error, doing, {"group": self._name})
            time.sleep(POLL_S)
