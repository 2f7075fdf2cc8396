"""Looks for a row's changes in topics from their ends backwards, and for records of our own topics from a moment on."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.topic_reader import SchemaReader
from cdcworker.coordinator.kafka.clients import make_consumer, reader_config
from cdcworker.coordinator.kafka.errors import translate
from cdcworker.coordinator.model import JsonObject
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.untrusted.json_text import parse_json
from cdcworker.worker.diagnostics.change_view import ChangeFilter, ChangeReader, is_named, table_of_topic
from cdcworker.worker.diagnostics.explain import places_of
from cdcworker.worker.diagnostics.tail_child import places
from cdcworker.worker.diagnostics.verify_goal import translated
from cdcworker.worker.security.topic_rules import access_of

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

CLIENT: Final = "cdcworker-explain"
ANSWER_S: Final = 10.0
SEARCH_S: Final = 40.0
SEARCH_MAX: Final = 2_000_000
FIRST_STEP: Final = 2_000
"""Offsets of the first look at a partition's end; each further one reads ten times as many."""
LATER_MAX: Final = 20_000
LATER_S: Final = 8.0
POLL_S: Final = 0.25
KEYS_MAX: Final = 100_000
DOING: Final = "read the topics"
NUMBER: Final = re.compile(r"-?[0-9]+")


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """A record of one of our own topics."""

    key: Any
    value: Any
    offset: int
    written_ms: int


@dataclass(slots=True)
class FoundChange:
    """`others`: changes of the row beside it, newest first; `newer`: how many of them came later."""

    change: JsonObject
    others: list[JsonObject] = field(default_factory=list)
    newer: int = 0

    @property
    def topic(self) -> str:
        return str(self.change["topic"])

    @property
    def partition(self) -> int:
        return int(self.change["partition"])

    @property
    def offset(self) -> int:
        return int(self.change["offset"])

    @property
    def written_ms(self) -> int:
        return int(self.change["written_ms"])


class RowSearch:
    def __init__(self, question: JsonObject) -> None:
        self._question = question
        self._access = access_of(question["providers"], question["prefixes"])
        asked = question["asked"]
        self._table, self._position = re.escape(asked["table"]), asked["lsn"]
        self._place: str = asked.get("place") or ""
        self._places = places_of((question["source"] or {}).get("class", ""))
        self._filter = ChangeFilter(key=tuple(asked["key"]))
        self._plain = all(NUMBER.fullmatch(text.rpartition("=")[2]) for text in asked["key"])
        settings = {
            **reader_config(question["kafka"], client_id=CLIENT),
            "auto.offset.reset": "earliest",
            "queued.max.messages.kbytes": 16_384,
            "fetch.wait.max.ms": 50,
        }
        self._consumer: Consumer = make_consumer(settings)
        self._schemas = SchemaReader({**settings, "enable.partition.eof": False}, question["logs"]["schemas"])
        self._changes = ChangeReader(self._schemas.stored)
        self._keys: dict[bytes, bool] = {}
        self._deadline = time.monotonic() + SEARCH_S
        self.searched: dict[str, Any] = {"partitions": 0, "records": 0, "complete": True}

    def __enter__(self) -> RowSearch:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()
        self._schemas.close()

    def partitions(self, topic: str) -> int:
        with translated(DOING):
            return max(1, len(self._consumer.list_topics(topic, ANSWER_S).topics[topic].partitions))

    # -- the row ------------------------------------------------------------------------------------------------------

    def find(self) -> FoundChange | None:
        """The newest change that fits. A key lies in one partition, but nobody says by which writer's rule."""
        with translated(DOING):
            asked = self._question
            there = sorted(places(self._consumer, asked["topics"], asked["pattern"], self._access))
            # A topic that was given another name does not say whose rows it holds.
            chosen = [place for place in there if is_named(self._table, table_of_topic(place[0]))] or there
            self.searched["partitions"] = len(chosen)
            best: list[JsonObject] = []
            for place in chosen:
                best += self._in(*place)
        best.sort(key=lambda change: (change["written_ms"], change["offset"]), reverse=True)
        for number, change in enumerate(best):
            if self._fits(change):
                return FoundChange(change, [other for other in best if other is not change], number)
        return None

    def _fits(self, change: JsonObject) -> bool:
        source = change.get("source", {})
        if self._place:
            return self._places is not None and self._places.has_place(source, self._place)
        return self._position is None or self._position in (source.get("lsn"), source.get("commit_lsn"))

    def _in(self, topic: str, partition: int) -> list[JsonObject]:
        """The row's changes in the newest part of a partition that holds one that fits."""
        low, end = self._bounds(topic, partition)
        step, found, at = FIRST_STEP, list[JsonObject](), end
        while at > low:
            begin = max(low, at - step)
            found = [*self._read(topic, partition, begin, at), *found]
            if any(self._fits(change) for change in found):
                return found
            at, step = begin, step * 10
            if time.monotonic() > self._deadline or self.searched["records"] > SEARCH_MAX:
                self.searched["complete"] = self.searched["complete"] and at <= low
                break
        return found

    def _read(self, topic: str, partition: int, begin: int, end: int) -> Iterator[JsonObject]:
        for message in self._messages(topic, partition, begin, end, self._deadline):
            self.searched["records"] += 1
            if not self._is_wanted(message.key()):
                continue
            try:
                change = self._changes.change(message)
            except CdcError as error:
                if not error.code.startswith("schema."):
                    raise
                continue
            if self._filter.takes(change) and is_named(self._table, change["table"]):
                yield change

    def _is_wanted(self, raw: bytes | None) -> bool:
        """Returns whether a record may be of the row. Its key alone decides where it can, which costs little; else the
        row is read."""
        if raw is None:
            return False
        known = self._keys.get(raw)
        if known is None:
            try:
                key = self._changes.value(raw)
            except CdcError:
                key = None
            probe = {"op": "create", "table": "", "key": key, "before": None, "after": None}
            known = self._filter.takes(probe) or _is_bare(key, numbers_tell=self._plain)
            if len(self._keys) >= KEYS_MAX:
                self._keys.clear()
            self._keys[raw] = known
        return known

    # -- records of our own -------------------------------------------------------------------------------------------

    def first(
        self, topic: str, partition: int, since_ms: int, fits: Callable[[ClusterRecord], bool]
    ) -> ClusterRecord | None:
        """The first that fits of those written from then on; None: there is none among so many."""
        from confluent_kafka import TopicPartition

        with translated(DOING):
            known = self._consumer.list_topics(timeout=ANSWER_S).topics
            if topic not in known or partition not in known[topic].partitions:
                return None
            (at,) = self._consumer.offsets_for_times([TopicPartition(topic, partition, since_ms)], timeout=ANSWER_S)
            _, end = self._bounds(topic, partition)
            if at.offset < 0:
                return None
            found = self._messages(topic, partition, at.offset, end, time.monotonic() + LATER_S)
            for message in itertools.islice(found, LATER_MAX):
                kept = _kept(message)
                if kept is not None and fits(kept):
                    return kept
        return None

    def _bounds(self, topic: str, partition: int) -> tuple[int, int]:
        from confluent_kafka import TopicPartition

        low, high = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=ANSWER_S)
        return int(low), int(high)

    def _messages(self, topic: str, partition: int, begin: int, end: int, deadline: float) -> Iterator[Message]:
        """Committed records of [begin, end)."""
        from confluent_kafka import KafkaError, TopicPartition

        self._consumer.assign([TopicPartition(topic, partition, begin)])
        while time.monotonic() < deadline:
            for message in self._consumer.consume(500, POLL_S):
                error = message.error()
                if error is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        return
                    if error.fatal() or not error.retriable():
                        raise translate(error, DOING)
                elif int(message.offset() or 0) >= end:
                    return
                else:
                    yield message
            (at,) = self._consumer.position([TopicPartition(topic, partition)])
            if at.offset >= end:
                return
        self.searched["complete"] = False


def _is_bare(key: Any, *, numbers_tell: bool) -> bool:
    """Bytes that may be a decimal, a number that may be a time: the key's schema does not say how people read it, the
    row's does."""
    values = key.values() if isinstance(key, dict) else ()
    kinds = (list, dict) if numbers_tell else (int, list, dict)
    return any(isinstance(value, kinds) or str(value).startswith("\\x") for value in values)


def _kept(message: Message) -> ClusterRecord | None:
    try:
        key, value = (parse_json(data) if data else None for data in (message.key(), message.value()))
    except ValueError:
        return None
    return ClusterRecord(key, value, int(message.offset() or 0), int(message.timestamp()[1]))
