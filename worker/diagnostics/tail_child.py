"""The child that reads a connector's topics: a JSON question on stdin, changes as lines of JSON, as fast as they are taken.

One thread reads and decodes, another writes. What waits between them is bounded: who follows what happens now is told
how many changes were left out, who reads the past is waited for.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TextIO

from cdcworker.connectors.topic_reader import SchemaReader
from cdcworker.coordinator.kafka.clients import make_consumer, reader_config
from cdcworker.coordinator.kafka.errors import translate
from cdcworker.coordinator.model import JsonObject
from cdcworker.schemas.errors import INTERNAL, CdcError
from cdcworker.schemas.patterns import required
from cdcworker.schemas.threads import SupervisedThread
from cdcworker.schemas.topic_access import TopicAccess
from cdcworker.worker.children.answer import read_question
from cdcworker.worker.diagnostics.change_view import ChangeFilter, ChangeReader
from cdcworker.worker.diagnostics.tail import LINE_BYTES_MAX, NO_TOPICS
from cdcworker.worker.security.topic_rules import access_of

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

CLIENT: Final = "cdcworker-tail"
NICENESS: Final = 10
ANSWER_S: Final = 10.0
LOOK_S: Final = 3.0
"""How often new topics and partitions are looked for."""
POLL_S: Final = 0.25
AT_ONCE: Final = 500
WAITING_MAX: Final = 2_000
WAITING_BYTES_MAX: Final = 4 << 20
TELL_S: Final = 1.0
"""How often the counters are told while nothing else is to say."""
Place = tuple[str, int]


def main() -> int:
    with read_question(NICENESS) as (question, out):
        follow(question, out)
    return 0


def follow(question: JsonObject, out: TextIO) -> None:
    """Ends with a line `end`, or `error`."""
    outlet = LineOutlet(out, may_drop=question["begin"] == "now")
    outlet.start()
    tail: TopicTail | None = None
    try:
        tail = TopicTail(question, outlet)
        why = tail.run()
        outlet.close({"end": {"why": why, **outlet.counts()}})
    except CdcError as error:
        outlet.close({"error": error.to_dict()})
    except BrokenPipeError:
        return
    except Exception as error:  # noqa: BLE001 - the edge of the process; the text may hold values, the type does not
        outlet.close({"error": CdcError(INTERNAL, f"{type(error).__name__} while reading changes").to_dict()})
    finally:
        if tail is not None:
            tail.close()
    outlet.join()


class LineOutlet(SupervisedThread):
    """Lines on their way out, a bounded number and size of them."""

    def __init__(self, out: TextIO, *, may_drop: bool, waiting_max: int = WAITING_MAX) -> None:
        super().__init__(name="outlet")
        self._out = out
        self._may_drop = may_drop
        self._waiting_max = waiting_max
        self._lines: deque[str] = deque()
        self._bytes = 0
        self._lock = threading.Condition()
        self._last: Mapping[str, Any] | None = None
        self._told: dict[str, int] = {}
        self._is_gone = False
        self.read = self.matched = self.dropped = self.unreadable = 0

    def counts(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("read", "matched", "dropped", "unreadable")}

    def put(self, change: Mapping[str, Any]) -> None:
        """Waits for the reader, or leaves out the oldest change that waits."""
        line = _line(change)
        with self._lock:
            self.matched += 1
            while self._is_full(line) and not self._is_gone:
                if self._may_drop and self._lines:
                    self._bytes -= len(self._lines.popleft())
                    self.dropped += 1
                elif not self._lines:
                    break
                else:
                    self._lock.wait(1.0)
            if self._is_gone:
                raise BrokenPipeError
            self._lines.append(line)
            self._bytes += len(line)
            self._lock.notify_all()

    def _is_full(self, line: str) -> bool:
        return len(self._lines) >= self._waiting_max or self._bytes + len(line) > WAITING_BYTES_MAX

    def say(self, item: Mapping[str, Any]) -> None:
        with self._lock:
            self._lines.append(json.dumps(item))
            self._lock.notify_all()

    def close(self, last: Mapping[str, Any]) -> None:
        with self._lock:
            self._last = last
            self._lock.notify_all()

    def serve(self) -> None:
        try:
            while self._step():
                pass
        except (BrokenPipeError, ValueError):
            with self._lock:
                self._is_gone = True
                self._lock.notify_all()

    def _step(self) -> bool:
        with self._lock:
            self._lock.wait_for(lambda: self._lines or self._last is not None, TELL_S)
            line = self._lines.popleft() if self._lines else None
            self._bytes -= len(line) if line else 0
            counts, last = self.counts(), self._last
            self._lock.notify_all()
        if counts["dropped"] != self._told.get("dropped", 0) or (line is None and counts != self._told):
            self._write(json.dumps({"counts": counts}))
            self._told = counts
        if line is not None:
            self._write(line)
        elif last is not None:
            self._write(json.dumps(last))
        self._out.flush()
        return line is not None or last is None

    def _write(self, line: str) -> None:
        self._out.write(line + "\n")


def _line(change: Mapping[str, Any]) -> str:
    """Returns a change as one line. A row that is larger than a reader accepts is given without its columns."""
    line = json.dumps({"change": change}, ensure_ascii=True, separators=(",", ":"), default=str)
    if len(line) < LINE_BYTES_MAX:
        return line
    short = {**change, "before": None, "after": None, "changed": None, "key": None, "too_large": len(line)}
    return json.dumps({"change": short}, separators=(",", ":"), default=str)


class TopicTail:
    """Reads from every partition of the topics, committed records alone."""

    def __init__(self, question: JsonObject, outlet: LineOutlet) -> None:
        self._asked = question
        self._access = access_of(question["rules"], question["prefixes"])
        self._outlet = outlet
        self._filter = ChangeFilter(**{name: tuple(texts) for name, texts in question["filter"].items()})
        settings = {
            **reader_config(question["kafka"], client_id=CLIENT),
            "auto.offset.reset": "earliest",
            "queued.max.messages.kbytes": 8_192,
            "fetch.message.max.bytes": 1 << 20,
            "fetch.wait.max.ms": 100,
        }
        self._consumer: Consumer = make_consumer(settings)
        self._schemas = SchemaReader({**settings, "enable.partition.eof": False}, question["schemas"])
        self._changes = ChangeReader(self._schemas.stored)
        self._ends: dict[Place, int] = {}
        self._assigned: set[Place] = set()
        self._look_at = 0.0
        self._sent = 0

    def close(self) -> None:
        self._consumer.close()
        self._schemas.close()

    def run(self) -> str:
        """Why it ended: limit, or end."""
        from confluent_kafka import KafkaException

        try:
            self._look()
            self._outlet.say({"ready": {"topics": sorted({topic for topic, _ in self._assigned})}})
            if not self._asked["follow"]:
                if not self._assigned:
                    raise CdcError(NO_TOPICS, "none of the connector's topics is there")
                if not self._ends:
                    return "end"
            while True:
                if self._asked["follow"]:
                    self._look()
                if self._take(self._consumer.consume(AT_ONCE, POLL_S)):
                    return "limit"
                if not self._asked["follow"] and not self._ends:
                    return "end"
        except KafkaException as exc:
            raise translate(exc, "read the topics") from exc

    def _take(self, messages: Iterable[Message]) -> bool:
        """True once as many as are wanted were handed on."""
        from confluent_kafka import KafkaError

        for message in messages:
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    self._ends.pop((str(message.topic()), int(message.partition() or 0)), None)
                elif error.fatal() or not error.retriable():
                    raise translate(error, "read the topics")
                continue
            if self._one(message):
                return True
        return False

    def _one(self, message: Message) -> bool:
        place = (str(message.topic()), int(message.partition() or 0))
        end = self._ends.get(place)
        if not self._asked["follow"] and end is None:
            return False  # written after the question
        self._outlet.read += 1
        if end is not None and int(message.offset() or 0) + 1 >= end:
            del self._ends[place]
        try:
            change = self._changes.change(message)
        except CdcError as error:
            if not error.code.startswith("schema."):
                raise
            self._outlet.unreadable += 1
            return False
        if not self._filter.takes(change):
            return False
        self._outlet.put(change)
        self._sent += 1
        return bool(self._sent == self._asked["limit"])

    # -- partitions ---------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Take up partitions that are new: of the first look where it was asked, of later ones their beginning."""
        now = time.monotonic()
        if now < self._look_at:
            return
        is_first, self._look_at = not self._look_at, now + LOOK_S
        there = set(places(self._consumer, self._asked["topics"], self._asked["pattern"], self._access))
        fresh = sorted(there - self._assigned)
        if not fresh:
            return
        self._assigned |= set(fresh)
        begin = self._begin if is_first else _beginning
        self._consumer.incremental_assign(begin(fresh))
        if not self._asked["follow"]:
            bounds = {place: self._bounds(place) for place in fresh}
            self._ends = {place: high for place, (low, high) in bounds.items() if high > low}

    def _bounds(self, place: Place) -> tuple[int, int]:
        from confluent_kafka import TopicPartition

        low, high = self._consumer.get_watermark_offsets(TopicPartition(*place), timeout=ANSWER_S)
        return int(low), int(high)

    def _begin(self, fresh: list[Place]) -> list[Any]:
        from confluent_kafka import TopicPartition

        begin, at = self._asked["begin"], self._asked["at"]
        if begin == "time":
            found = self._consumer.offsets_for_times([TopicPartition(*place, at) for place in fresh], timeout=ANSWER_S)
            return [TopicPartition(one.topic, one.partition, one.offset) for one in found]
        if begin == "offset":
            return [TopicPartition(*place, at) for place in fresh]
        if begin == "now":
            # A logical end is looked up later: what is written until then would be missing.
            return [TopicPartition(*place, self._bounds(place)[1]) for place in fresh]
        return _beginning(fresh)


def _beginning(fresh: list[Place]) -> list[Any]:
    from confluent_kafka import OFFSET_BEGINNING, TopicPartition

    return [TopicPartition(*place, OFFSET_BEGINNING) for place in fresh]


def places(consumer: Consumer, names: Iterable[str], pattern: str, access: TopicAccess) -> Iterable[Place]:
    """Returns the partitions of those topics that are there and that the connector may read."""
    topics = consumer.list_topics(timeout=ANSWER_S).topics
    there = topics.keys()
    wanted = {name for name in names if name in there and access.may_read(name, there)}
    if pattern:
        wanted |= set(required(pattern).matching(access.readable(there)))
    for name, topic in topics.items():
        if topic.error is None and name in wanted:
            yield from ((name, number) for number in topic.partitions)


if __name__ == "__main__":
    sys.exit(main())
