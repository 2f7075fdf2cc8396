"""Waits until everything up to a log position of the source is in the topics, then in the warehouse's ledger."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cdcworker.schemas.errors import CdcError
from cdcworker.worker.quickstart.errors import LAGS

if TYPE_CHECKING:
    from confluent_kafka import Consumer

TAIL_OFFSETS = 200
POLL_S = 0.25
PartitionKey = tuple[str, int]


class CatchUpDeadline:
    """A time limit and the error for when it has passed. `on_wait` is called again and again during the wait."""

    def __init__(self, timeout_s: float, on_wait: Callable[[], None] = lambda: None) -> None:
        self.timeout_s = timeout_s
        self._end = time.monotonic() + timeout_s
        self._on_wait = on_wait

    def check(self, lagging: str) -> None:
        self._on_wait()
        if time.monotonic() > self._end:
            raise CdcError(LAGS, f"not caught up within {self.timeout_s:.0f} s: {lagging}")


def wait_for_watermark(bootstrap: str, topic: str, lsn: int, deadline: CatchUpDeadline) -> int:
    """Waits until a committed watermark at or past `lsn` is in the topic, and returns it."""
    highest = -1
    with consumer(bootstrap) as client:
        while not (starts := tail_starts(client, [topic])):
            deadline.check(f"the topic {topic} does not exist")
            time.sleep(POLL_S)
        client.assign(starts)
        while highest < lsn:
            deadline.check(f"the source task has handed on {highest} of log position {lsn}")
            message = client.poll(POLL_S)
            if message is not None and message.error() is None and message.value():
                highest = max(highest, int(json.loads(message.value()).get("commit_lsn") or -1))
    return highest


def next_offsets(bootstrap: str, topics: Sequence[str]) -> dict[PartitionKey, int]:
    """Returns the offset after the last committed record of each partition that holds one. End offsets also count
    control records."""
    offsets: dict[PartitionKey, int] = {}
    with consumer(bootstrap) as client:
        for start in tail_starts(client, topics):
            last = _last_record(client, start.topic, start.partition)
            if last is not None:
                offsets[start.topic, start.partition] = last + 1
    return offsets


def wait_for_ledger(dsn: str, sink: str, offsets: Mapping[PartitionKey, int], deadline: CatchUpDeadline) -> None:
    """Waits until the sink's ledger in the warehouse has passed every offset."""
    while True:
        applied = read_ledger(dsn, sink)
        lagging = {at: (applied.get(at, 0), offset) for at, offset in offsets.items() if applied.get(at, 0) < offset}
        if not lagging:
            return
        deadline.check(_lag_text(sink, lagging))
        time.sleep(POLL_S)


def _lag_text(sink: str, lagging: Mapping[PartitionKey, tuple[int, int]]) -> str:
    parts = [f"{topic}/{partition} at {at} of {end}" for (topic, partition), (at, end) in sorted(lagging.items())[:5]]
    return f"the sink {sink} has applied {', '.join(parts)}" + (" and more" if len(lagging) > 5 else "")


def read_ledger(dsn: str, sink: str) -> dict[PartitionKey, int]:
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection:
        ((exists,),) = connection.execute("SELECT to_regclass('_cdcworker.ledger') IS NOT NULL").fetchall()
        if not exists:
            return {}
        query = "SELECT topic, partition, next_offset FROM _cdcworker.ledger WHERE sink = %s"
        return {(str(topic), int(part)): int(at) for topic, part, at in connection.execute(query, (sink,)).fetchall()}


@contextmanager
def consumer(bootstrap: str) -> Iterator[Consumer]:
    from confluent_kafka import Consumer

    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        # Only a name: nothing is committed and no group is joined.
        "group.id": "cdcworker-quickstart",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        # A broker that restarts is shown by what lags, not by lines across the screen.
        "log_level": 2,
    }
    client = Consumer(settings)
    try:
        yield client
    finally:
        client.close()


def tail_starts(client: Consumer, topics: Sequence[str]) -> list[Any]:
    """Returns the last few offsets of every partition of those topics that exist."""
    from confluent_kafka import TopicPartition

    starts = []
    for topic in topics:
        described = client.list_topics(topic, timeout=10).topics.get(topic)
        if described is not None and described.error is None:
            for partition in described.partitions:
                low, high = client.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
                starts.append(TopicPartition(topic, partition, max(low, high - TAIL_OFFSETS)))
    return starts


def end_offsets(client: Consumer, topics: Sequence[str]) -> int:
    """Returns the sum of the end offsets of all partitions of those topics that exist."""
    from confluent_kafka import TopicPartition

    known = client.list_topics(timeout=3).topics
    places = [
        TopicPartition(topic, partition) for topic in topics if topic in known for partition in known[topic].partitions
    ]
    return sum(client.get_watermark_offsets(place, timeout=3)[1] for place in places)


def _last_record(client: Consumer, topic: str, partition: int) -> int | None:
    """Returns the offset of the last committed record: it reads ever longer tails until one holds a record."""
    from confluent_kafka import KafkaError, TopicPartition

    low, high = client.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
    length = TAIL_OFFSETS
    while low < high:
        start, last = max(low, high - length), None
        client.assign([TopicPartition(topic, partition, start)])
        limit = time.monotonic() + 30
        while time.monotonic() < limit:
            message = client.poll(POLL_S)
            if message is None:
                continue
            error = message.error()
            if error is None:
                last = message.offset()
            elif error.code() == KafkaError._PARTITION_EOF:
                break
        if last is not None or start == low:
            return last
        length *= 10
    return None
