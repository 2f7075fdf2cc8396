"""What a sink's ledger must have passed so that its warehouse holds everything up to a position of the source.

A watermark at or past the position says that the records up to there are written; the ends of the data topics, read
after it, lie behind them all. A ledger that stands before such an end has still passed it when no committed record lies
between: control records count as offsets, and no reader sees them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.verify.errors import BEHIND
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from confluent_kafka import Consumer

CLIENT: Final = "cdcworker-verify"
TAIL: Final = 200
ANSWER_S: Final = 10.0
PEEK_S: Final = 5.0
POLL_S: Final = 0.25
TOLD_MAX: Final = 5
Partition = tuple[str, int]
Peek = Callable[[Partition, int], int | None]


Reached = Callable[[Mapping[str, Any]], int]


def commit_of(watermark: Mapping[str, Any]) -> int:
    """Returns the position of a watermark whose commits are positions of the log."""
    return int(watermark.get("commit_lsn") or -1)


class SourceProgress:
    """`tasks` of the source have each to have come past a position. Its consumers are closed with `close`."""

    def __init__(
        self,
        kafka: Mapping[str, str],
        prefix: str,
        source: tuple[str, int],
        topics: Sequence[str] = (),
        reached: Reached = commit_of,
    ) -> None:
        """`reached` returns the position of the log up to which a watermark says that all is in Kafka."""
        from cdcworker.coordinator.kafka.clients import make_consumer, reader_config

        self._watermarks = f"{prefix}.watermark"
        self._connector, self._tasks = source
        self._topics = list(topics)
        self._reached = reached
        config = {**reader_config(kafka, client_id=CLIENT), "auto.offset.reset": "earliest", "fetch.wait.max.ms": 20}
        self._tail: Consumer = make_consumer(config)
        self._peeker: Consumer = make_consumer(config)
        # Of committed records the end lies before what a transaction wrote whose markers are still on their way, and
        # the watermark that tells of this very transaction may be ahead of them.
        self._ender: Consumer = make_consumer({**config, "isolation.level": "read_uncommitted"})
        self._seen: dict[int, int] = {}
        self._tailing = False
        self._last: KafkaGoal | None = None

    def follow(self, topics: Sequence[str], reached: Reached) -> None:
        """Goes by these topics, and by positions as the source's database has them."""
        self._topics, self._reached = list(topics), reached

    def goal(self, position: int, deadline: float) -> KafkaGoal:
        if self._last is not None and self._last.position >= position:
            return self._last
        with translated():
            while self._lowest() < position:
                if time.monotonic() > deadline:
                    text = f"the source {self._connector} has handed on {self._lowest()} of log position {position}"
                    raise CdcError(BEHIND, text, where={"connector": self._connector})
                self._follow()
            self._last = KafkaGoal(position, self._ends(), self._peek)
        return self._last

    def close(self) -> None:
        for consumer in (self._tail, self._peeker, self._ender):
            consumer.close()

    def _lowest(self) -> int:
        return min((self._seen.get(task, -1) for task in range(self._tasks)), default=-1)

    def _follow(self) -> None:
        from confluent_kafka import TopicPartition

        if not self._tailing:
            low, high = self._offsets(self._tail, self._watermarks, 0)
            self._tail.assign([TopicPartition(self._watermarks, 0, max(low, high - TAIL * self._tasks))])
            self._tailing = True
        message = self._tail.poll(POLL_S)
        value = None if message is None or message.error() is not None else message.value()
        if value:
            key, found = json.loads(message.key() or b"{}"), json.loads(value)
            task, at = int(key.get("task", 0)), self._reached(found)
            if key.get("connector", self._connector) == self._connector:
                self._seen[task] = max(at, self._seen.get(task, -1))

    def _ends(self) -> dict[Partition, int]:
        """Returns the ends of those topics that exist, behind open transactions too."""
        known = self._ender.list_topics(timeout=ANSWER_S).topics
        places = [(topic, part) for topic in self._topics if topic in known for part in known[topic].partitions]
        ends = {place: self._offsets(self._ender, *place) for place in places}
        return {place: high for place, (low, high) in ends.items() if high > low}

    def _offsets(self, client: Consumer, topic: str, partition: int) -> tuple[int, int]:
        from confluent_kafka import TopicPartition

        low, high = client.get_watermark_offsets(TopicPartition(topic, partition), timeout=ANSWER_S)
        return int(low), int(high)

    def _peek(self, place: Partition, offset: int) -> int | None:
        """Returns where the next committed record stands, or how far there is none; None: not known at this moment."""
        from confluent_kafka import KafkaError, TopicPartition

        with translated():
            low, _ = self._offsets(self._peeker, *place)
            self._peeker.assign([TopicPartition(*place, max(low, offset))])
            end = time.monotonic() + PEEK_S
            while time.monotonic() < end:
                message: Any = self._peeker.poll(POLL_S)
                if message is None:
                    continue
                error = message.error()
                if error is None or error.code() == KafkaError._PARTITION_EOF:
                    return int(message.offset())
            return None


class KafkaGoal:
    """Offsets that a ledger must have passed. What was peeked at once stays as it was."""

    def __init__(self, position: int, ends: Mapping[Partition, int], peek: Peek) -> None:
        self.position = position
        self._ends = dict(ends)
        self._peek = peek

    def reached(self, ledger: Mapping[Partition, int]) -> bool:
        return next(self._left(ledger), None) is None

    def _left(self, ledger: Mapping[Partition, int]) -> Iterator[Partition]:
        """Whose ends have not been passed."""
        for place, end in sorted(self._ends.items()):
            at = ledger.get(place, 0)
            found = at if at >= end else self._peek(place, at)
            if found is None or found < end:
                yield place
            else:
                # A ledger only moves on.
                del self._ends[place]

    def lagging(self, ledger: Mapping[Partition, int]) -> str:
        left = list(islice(self._left(ledger), TOLD_MAX + 1))
        parts = [
            f"{topic}/{part} at {ledger.get((topic, part), 0)} of {self._ends[topic, part]}" for topic, part in left
        ]
        more = " and more" if len(parts) > TOLD_MAX else ""
        return f"the warehouse has applied {', '.join(parts[:TOLD_MAX])}{more}"


@contextmanager
def translated(doing: str = "compare with the topics") -> Iterator[None]:
    """Kafka's errors as ours."""
    from cdcworker.coordinator.kafka.errors import translate
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as exc:
        raise translate(exc, doing) from exc
