"""An independent reader of what the cluster commits: data topics, config log, status log, each with the time it was seen."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_END, Consumer, KafkaException, Message, TopicPartition

KEPT = 4_000
FRAME_BYTES = 5
"""What stands before the Avro body: a zero byte and the schema's id."""


class Row(NamedTuple):
    seen: float
    """Monotonic, when the reader got it."""
    written_ms: int
    """The producer's clock."""
    id: int


class Entry(NamedTuple):
    seen: float
    key: str
    value: dict[str, Any] | None


@dataclass
class Tally:
    """What a reader of one topic must never see, counted: a row twice, a row out of order, a gap."""

    last: int = 0
    rows: int = 0
    duplicates: int = 0
    missing: int = 0

    def take(self, row: int) -> None:
        self.rows += 1
        if self.last and row <= self.last:
            self.duplicates += 1
        elif self.last:
            self.missing += row - self.last - 1
        self.last = max(self.last, row)


def long_of(data: bytes, at: int = FRAME_BYTES) -> int:
    """The Avro long at an index: seven bits a byte, lowest first, then zigzag."""
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return (number >> 1) ^ -(number & 1)
        at, shift = at + 1, shift + 7


class Watcher(threading.Thread):
    """Reads committed records from now on. `topics` maps topics of data to the name that `rows` has for them."""

    def __init__(self, bootstrap: str, topics: Mapping[str, str], logs: Mapping[str, str]) -> None:
        super().__init__(name="watcher", daemon=True)
        self.rows: dict[str, deque[Row]] = defaultdict(lambda: deque(maxlen=KEPT))
        self.entries: dict[str, deque[Entry]] = defaultdict(lambda: deque(maxlen=KEPT))
        self.tallies: dict[str, Tally] = defaultdict(Tally)
        self.error: BaseException | None = None
        self._topics = dict(topics)
        self._logs = dict(logs)
        self._ending = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "watcher",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 100,
                "auto.offset.reset": "latest",
            }
        )
        self._consumer.assign(self._places(bootstrap))

    def _places(self, bootstrap: str) -> list[TopicPartition]:
        places = []
        for topic in (*self._topics, *self._logs):
            found = self._consumer.list_topics(topic, timeout=10).topics[topic]
            if found.error is not None:
                raise KafkaException(found.error)
            places += [TopicPartition(topic, number, OFFSET_END) for number in found.partitions]
        return places

    def run(self) -> None:
        try:
            while not self._ending.is_set():
                for message in self._consumer.consume(500, 0.005):
                    if message.error() is None:
                        self._take(message, time.monotonic())
        except BaseException as exc:
            self.error = exc
            raise
        finally:
            self._consumer.close()

    def _take(self, message: Message, now: float) -> None:
        topic, key = message.topic() or "", message.key()
        if key is None:
            return
        if topic in self._logs:
            text = message.value()
            value = json.loads(text) if text else None
            self.entries[self._logs[topic]].append(Entry(now, bytes(key).decode(), value))
            return
        name, row = self._topics[topic], long_of(bytes(key))
        self.rows[name].append(Row(now, int(message.timestamp()[1]), row))
        self.tallies[name].take(row)

    def stop(self) -> None:
        self._ending.set()
        self.join(10)

    # --- questions --------------------------------------------------------------------------------------------------

    def last_seen(self, name: str) -> float:
        rows = self.rows[name]
        return rows[-1].seen if rows else float("-inf")

    def first_new(self, name: str, row: int, since_ms: int) -> float | None:
        """When the first record was seen that was written after `since_ms` for a row of at least this id."""
        for seen, written_ms, number in list(self.rows[name]):
            if number >= row and written_ms >= since_ms:
                return seen
        return None

    def longest_gap(self, name: str, since: float) -> float:
        """The longest time between two records in a row, the second of which was seen after `since`."""
        rows = list(self.rows[name])
        return max((b.seen - a.seen for a, b in itertools.pairwise(rows) if b.seen >= since), default=0.0)

    def first_entry(self, log: str, since: float, wanted: Any) -> Entry | None:
        """The first record of a log since then for which `wanted(entry)` holds."""
        return next((e for e in list(self.entries[log]) if e.seen >= since and wanted(e)), None)
