"""The running task of a sink of records: reads Kafka, hands records to lanes, commits what the target has taken."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.record_sink.committer import Committer
from cdcworker.connectors.record_sink.config import EngineSettings
from cdcworker.connectors.record_sink.group_offsets import GroupOffsets, Partition
from cdcworker.connectors.record_sink.lane import Lane
from cdcworker.connectors.record_sink.ownership import Ownership
from cdcworker.connectors.record_sink.progress import Progress
from cdcworker.connectors.sink_engine.kafka.brokers import SinkBrokers
from cdcworker.connectors.sink_engine.kafka.lag import RecordsRead, SinkLag
from cdcworker.connectors.topic_reader import LOOK_S, OFFSETS_GONE, READ_FAILED, TopicReader
from cdcworker.schemas.errors import CdcError

log = logging.getLogger(__name__)

READ_S: Final = 0.1
GATHER_S: Final = 0.005
"""Records that come within this time of each other are taken up together: each turn has its cost."""
REPORT_S: Final = 1.0
READ_COUNT: Final = 1_000
DRAIN_S: Final = 3.0
"""How long the writes that run when the task is to stop may take."""
AGAIN_S: Final = 1.0
TAKE_OVER_ALLOW_S: Final = 60.0
ID_S: Final = 20.0
RENEW_S: Final = 3_600.0
RENEW_AGAIN_S: Final = 60.0


class TaskParts(NamedTuple):
    """What a task works with; `open_reader` makes the reader, from the offsets that it is told."""

    settings: EngineSettings
    brokers: SinkBrokers
    offsets: GroupOffsets
    open_reader: Callable[[Mapping[Partition, int]], TopicReader]
    open_lane: Callable[[int, Ownership, Progress], Lane]
    lag: SinkLag
    renew_letters: Callable[[], None] = lambda: None
    """Commits again how far the dead letters are done with. Raises CdcError."""


class RecordSinkTask:
    """Runs until the context says stop."""

    def __init__(self, topics: Sequence[str], parts: TaskParts, context: TaskContext) -> None:
        self._topics = tuple(topics)
        self._parts = parts
        self._context = context
        self._ownership = Ownership()
        self._progress = Progress()
        self._lanes: list[Lane] = []
        self._lane_of: dict[Partition, Lane] = {}
        self._paused: set[Partition] = set()
        self._ids: dict[str, str] = {}
        self._committer = Committer(
            parts.offsets, self._progress, self._ownership, parts.settings.commit_s,
            lambda newest: parts.lag.applied_changes(newest.items()),
        )  # fmt: skip
        self._reported = float("-inf")
        self._looked_at = time.monotonic()
        self._renew_at = float("-inf")

    def run(self) -> None:
        reader: TopicReader | None = None
        try:
            reader = self._opened()
            if reader is not None:
                self._follow(reader)
        except CdcError as error:
            if error.kind != "fenced":
                self._finish()
            raise
        else:
            self._finish()
            self._progress.raise_failed()
        finally:
            self._end()
            self._committer.close()
            if reader is not None:
                reader.close()

    def _follow(self, reader: TopicReader) -> None:
        while not self._context.stopping():
            self._context.beat("records", 0.0)
            self._take(self._read(reader), reader)
            self._look_for_recreated()
            self._renew()
            self._progress.raise_failed()
            for lane in self._lanes:
                lane.watch()
            self._report(reader)

    def _read(self, reader: TopicReader) -> Sequence[Any]:
        try:
            return reader.read_soon(READ_COUNT, READ_S, min(GATHER_S, self._parts.settings.linger_s))
        except CdcError as error:
            if error.code != READ_FAILED:
                raise
            self._wait_for_kafka(error)
            return ()

    def _wait_for_kafka(self, error: CdcError) -> None:
        self._progress.try_failed(error)
        log.warning("Kafka is tried again error=%s", error)
        time.sleep(AGAIN_S)

    def _opened(self) -> TopicReader | None:
        """Returns the reader once Kafka has answered; None when the task is to stop before."""
        while not self._context.stopping():
            try:
                return self._open()
            except CdcError as error:
                if error.kind != "transient":
                    raise
                self._wait_for_kafka(error)
                self._context.report(self._progress.numbers())
        return None

    def _open(self) -> TopicReader:
        self._context.beat("taking over the offsets", TAKE_OVER_ALLOW_S)
        there = self._parts.brokers.partitions(self._topics)
        begins = self._committer.take_over([(t, n) for t, count in there.items() for n in range(count)])
        self._lanes = [
            self._parts.open_lane(number, self._ownership, self._progress) for number in range(self._lane_count(there))
        ]
        for lane in self._lanes:
            lane.start()
        self._committer.start()
        return self._parts.open_reader(begins)

    def _lane_count(self, there: Mapping[str, int]) -> int:
        """A lane has at least one partition; topics that are not there yet have one for sure."""
        known = sum(there.values()) + sum(topic not in there for topic in self._topics)
        return max(1, min(self._parts.settings.lanes, known))

    # Reading

    def _take(self, messages: Sequence[Any], reader: TopicReader) -> None:
        self._parts.lag.read_records(_summed(messages), reader.read_to)
        by_lane: dict[Lane, list[tuple[Any, str]]] = {}
        for message in messages:
            place = (message.topic() or "", message.partition() or 0)
            lane = self._lane_of.get(place) or self._assigned(place, message.offset() or 0)
            by_lane.setdefault(lane, []).append((message, self._id(place[0])))
        for lane, offered in by_lane.items():
            lane.offer(offered)
        self._balance(reader)

    def _assigned(self, place: Partition, first: int) -> Lane:
        lane = self._lane_of[place] = self._lanes[len(self._lane_of) % len(self._lanes)]
        self._committer.add(place, first)
        return lane

    def _id(self, topic: str) -> str:
        """Returns what ids of the topic's records begin with: the topic's own id, so that one that is created again has others."""
        known = self._ids.get(topic)
        if known is None:
            known = self._ids[topic] = self._asked_id(topic)
        return known

    def _asked_id(self, topic: str) -> str:
        """Returns the topic's id, or its name where brokers give no ids. One that was just created is not known to each broker
        yet: its name instead would give its records other ids than after a restart."""
        deadline = time.monotonic() + ID_S
        while (found := self._parts.brokers.id_of(topic)) is None:
            if time.monotonic() > deadline or self._context.stopping():
                raise CdcError(READ_FAILED, "the id of the topic is not known", where={"topic": topic})
            time.sleep(0.1)
        return found or topic

    def _look_for_recreated(self) -> None:
        """CdcError for a topic that was created again: offsets of the old one say nothing of the new one."""
        now = time.monotonic()
        if now < self._looked_at + LOOK_S:
            return
        self._looked_at = now
        try:
            found = self._parts.brokers.ids(sorted(self._ids))
        except CdcError:
            return  # the next time
        for topic, id in found.items():
            if self._ids[topic] not in (id, topic):
                text = "the topic was deleted and created again since it was read"
                raise CdcError(OFFSETS_GONE, text, where={"topic": topic})

    def _renew(self) -> None:
        if time.monotonic() < self._renew_at:
            return
        self._context.beat("committing again how far dead letters are done with", TAKE_OVER_ALLOW_S)
        try:
            self._parts.renew_letters()
            self._renew_at = time.monotonic() + RENEW_S
        except CdcError as error:
            self._renew_at = time.monotonic() + RENEW_AGAIN_S
            log.warning("the offsets of dead letters are committed again later error=%s", error)

    def _balance(self, reader: TopicReader) -> None:
        """Pauses the partitions of lanes that have enough, and resumes those of lanes that have room again."""
        full = {place for place, lane in self._lane_of.items() if place not in self._paused and lane.is_full}
        free = {place for place in self._paused if self._lane_of[place].has_room}
        if full:
            reader.pause(full)
        if free:
            reader.resume(free)
        self._paused = (self._paused | full) - free

    # The end

    def _finish(self) -> None:
        """Lets the writes that run end, and commits what they have done."""
        self._end()
        self._committer.finish()

    def _end(self) -> None:
        lanes, self._lanes = self._lanes, []
        for lane in lanes:
            lane.end()
        self._ownership.end()
        deadline = time.monotonic() + DRAIN_S
        for lane in lanes:
            lane.join(max(0.0, deadline - time.monotonic()))

    def _report(self, reader: TopicReader) -> None:
        now = time.monotonic()
        if now - self._reported < REPORT_S:
            return
        self._reported = now
        self._parts.lag.begin(reader.partitions)
        applied = self._committer.applied()
        lag = self._parts.lag.numbers(applied)
        late = lag.get("topic_lag_s") or {}
        self._context.report(
            {
                **self._progress.numbers(),
                **lag,
                **({"lag_s": max(late.values())} if late else {}),
                "offsets": {f"{topic}-{partition}": at for (topic, partition), at in applied.items()},
            }
        )


def _summed(messages: Sequence[Any]) -> list[RecordsRead]:
    """Returns what was read, by partition."""
    sizes: dict[Partition, list[int]] = {}
    for message in messages:
        at = message.offset() or 0
        found = sizes.setdefault((message.topic() or "", message.partition() or 0), [at, at, 0, 0])
        found[1:] = [at, found[2] + 1, found[3] + len(message.key() or b"") + len(message)]
    return [RecordsRead(topic, number, *found) for (topic, number), found in sizes.items()]
