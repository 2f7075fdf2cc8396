"""One life of a source task between two openings: poll, encode, produce, commit, acknowledge."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, Final, Protocol, cast

from cdcworker.connectors.api import SourceTask
from cdcworker.coordinator import kafka_errors
from cdcworker.coordinator.offsets import StoredPosition, offset_value
from cdcworker.schemas.change import Batch, Change, JsonObject, OutRecord, Ready
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.schemas.failpoints import hit
from cdcworker.worker.control import Control
from cdcworker.worker.progress import OWN
from cdcworker.worker.source_counts import Counters, Open, Reason
from cdcworker.worker.topic_facts import TopicFacts, Topics

log = logging.getLogger(__name__)

LEASE_LAPSED: Final = declare(
    "source.lease_lapsed",
    "transient",
    "The worker has been silent for too long",
    "Nothing: the task goes on by itself when its worker is heard again.",
)
RECORD_TOO_LARGE: Final = declare(
    "source.record_too_large",
    "data",
    "A change is larger than its topic allows",
    "Raise max.message.bytes of the topic, from 32 MiB on also the worker's producer.queue.buffering.max.kbytes, or leave "
    "the large column out of the capture.",
)
POSITION_TOO_LARGE: Final = declare(
    "source.position_too_large",
    "config",
    "The task's position is larger than the topic of offsets allows",
    "Raise max.message.bytes of the topic of offsets. Snapshots of fewer tables at a time make positions smaller.",
)
TRANSACTION_TOO_LONG: Final = declare(
    "source.transaction_too_long",
    "config",
    "A source transaction did not end within the Kafka transaction's time-out",
    "Raise transaction.timeout.ms (and the broker's transaction.max.timeout.ms), or split large transactions.",
)

WATERMARK_INTERVAL_S: Final = 1.0
FLUSH_FIRST_AFTER_S: Final = 1.0
"""A transaction older than this is flushed before its position is written, so that it holds back the other tasks of
its offsets partition for milliseconds only."""
FLUSH_TIMEOUT_S: Final = 30.0
SETTLE_S: Final = 3.0
"""How long a stop or a pause waits for the end of the source's transaction before the work is aborted and replayed."""
LEASE_CHECK_RECORDS: Final = 1_000
READY_SLICE: Final = 10_000
"""Records that are produced in one go, between two looks at the lease."""
RECORD_OVERHEAD_BYTES: Final = 100
"""What a record batch of one record adds to key, value and headers, rounded up."""
_POSITIVE: Final = 0x7FFFFFFF


class Pen(Protocol):
    """What a session needs of a transactional producer."""

    @property
    def opened_at(self) -> float | None: ...
    def begin(self) -> None: ...
    def produce(
        self, topic: str, key: bytes | None, value: bytes | None, partition: int, headers: Any = None
    ) -> None: ...
    def produce_all(self, records: Sequence[tuple[Any, ...]]) -> None: ...
    def serve(self) -> None: ...
    def flush(self, timeout_s: float) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class ChangeEncoder(Protocol):
    def encode(self, changes: Sequence[Change]) -> list[OutRecord]: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """A transaction is committed at the first boundary after any of these."""

    records_max: int = 20_000
    bytes_max: int = 8_000_000
    ms_max: int = 200
    transaction_timeout_ms: int = 900_000
    split_bytes: int = 1 << 30
    """From here on a source transaction is committed in parts, at the latest after half of the time-out."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a session writes besides its data topics, and as whom."""

    connector: str
    task: int
    incarnation: str
    task_epoch: int
    offsets_topic: str
    offsets_partition: int
    offsets_key: str
    watermark_topic: str


@dataclass(frozen=True, slots=True)
class Encoded:
    """Records that the encoder made of changes, and the facts of their topics."""

    records: Sequence[OutRecord]
    changes: Sequence[Change]
    facts: dict[str, TopicFacts]


@dataclass(frozen=True, slots=True)
class Tools:
    """The parts that a session works with; all are its own and die with it, the topics excepted."""

    pen: Pen
    task: SourceTask
    encoder: ChangeEncoder
    topics: Topics
    control: Control
    counters: Counters
    on_tick: Callable[[Session], None]
    clock: Callable[[], float] = field(default=time.monotonic)


class Session:
    """Runs until the task is to stop or pause, or an error ends it. After an error it is thrown away whole."""

    def __init__(self, tools: Tools, place: Place, limits: Limits, committed: JsonObject | None) -> None:
        self.on_commit: Callable[[], None] = lambda: None
        self._tools = tools
        self._place = place
        self._limits = limits
        self.committed = committed
        self._pending: JsonObject | None = None
        self._pending_since = 0.0
        # Before the first change the task stands at the committed position: that is a boundary.
        self._at_boundary = True
        self._open = Open()
        self.watermark: JsonObject | None = None
        self._watermark_written = float("-inf")

    def run(self) -> None:
        """Returns with everything committed, or aborted where the source's transaction did not end in time."""
        control, poll = self._tools.control, self._tools.task.poll
        settle_until: float | None = None
        while True:
            if control.interrupted():
                settle_until = settle_until or self._tools.clock() + SETTLE_S
                if self._settled(settle_until):
                    return
            began = time.perf_counter()
            batch = poll()
            if batch.changes or batch.records:  # else it has waited
                self._tools.counters.took("read", began)
            self._require_lease()
            self.take(batch)
            # The next one would be made while this one is still held.
            del batch
            OWN.beat("the next poll")
            self._tools.on_tick(self)

    def take(self, batch: Batch) -> None:
        """One batch: produced, and committed with what is open when it is time."""
        self._tools.counters.polls += 1
        if batch.changes or batch.records:
            began = time.perf_counter()
            parts = list(self._parts(batch))
            began = self._tools.counters.took("encode", began)
            if batch.position is None and self._at_boundary and self._tools.pen.opened_at is not None:
                # A long transaction begins: what is complete must not wait for its end.
                self._commit("large")
                began = time.perf_counter()
            self._begin()
            hit("source.before_produce")
            for part in parts:
                self._produce(part) if isinstance(part, Encoded) else self._produce_ready(part)
            self._tools.counters.took("produce", began)
            self._at_boundary = False
            hit("source.half_produced" if batch.position is None else "source.produced")
        if batch.position is not None:
            self._note(batch.position)
        if batch.watermark is not None:
            self.watermark = batch.watermark
        reason = self._due(batch)
        if reason:
            self._commit(reason)
        elif batch.part is not None and self._outgrown():
            log.info("part of a source transaction is committed records=%d", self._open.records)
            self._pending = batch.part
            self._commit("part")
        self._require_time()

    def _parts(self, batch: Batch) -> Iterator[list[Ready] | Encoded]:
        """In the order of the changes, all encoded before anything is produced."""
        run: list[Change] = []
        for is_ready, items in groupby(batch.changes, lambda item: isinstance(item, Ready)):
            if is_ready:
                if run:
                    yield self._encoded(run)
                    run = []
                yield cast("list[Ready]", [*items])
            else:
                run = cast("list[Change]", [*items])
        if run or batch.records:
            yield self._encoded(run, batch.records)

    def _encoded(self, changes: Sequence[Change], more: Sequence[OutRecord] = ()) -> Encoded:
        records = [*self._tools.encoder.encode(changes), *more]
        return Encoded(records, changes, self._tools.topics.all({record.topic for record in records}))

    def _note(self, position: JsonObject) -> None:
        self._at_boundary = True
        if self._pending is None:
            self._pending_since = self._tools.clock()
        self._pending = position

    def _due(self, batch: Batch) -> Reason:
        """INV-3: only at a boundary. When the stream ran dry at once, else when a limit is reached."""
        if not self._at_boundary:
            return ""
        now, held, limits = self._tools.clock(), self._open, self._limits
        if self._tools.pen.opened_at is None and (self._pending is None or self._pending == self.committed):
            overdue = now - self._watermark_written >= WATERMARK_INTERVAL_S
            return "watermark" if batch.idle and self.watermark is not None and overdue else ""
        if batch.idle:
            return "idle"
        if held.records >= limits.records_max:
            return "records"
        if held.bytes >= limits.bytes_max:
            return "bytes"
        since = held.since if self._tools.pen.opened_at is not None else self._pending_since
        return "time" if (now - since) * 1000 >= limits.ms_max else ""

    def _outgrown(self) -> bool:
        """The one exception to INV-3: what no Kafka transaction can hold is resumed by index in the source's."""
        if self._tools.pen.opened_at is None:
            return False
        open_ms = (self._tools.clock() - self._open.since) * 1000
        return self._open.bytes >= self._limits.split_bytes or open_ms >= self._limits.transaction_timeout_ms / 2

    def _begin(self) -> None:
        if self._tools.pen.opened_at is None:
            self._open = Open(since=self._tools.clock())
            self._tools.pen.begin()
            hit("source.begun")

    def _produce_ready(self, parts: Sequence[Ready]) -> None:
        """Each is of one transaction: with small ones the calls would cost more than their records."""
        pen, opened = self._tools.pen, self._open
        records = parts[0].records if len(parts) == 1 else list(chain.from_iterable(part.records for part in parts))
        largest = max(parts, key=attrgetter("largest"))
        if largest.largest > opened.largest_bytes:
            opened.largest_bytes, opened.largest_topic = largest.largest, largest.largest_topic
        for at in range(0, len(records), READY_SLICE):
            pen.produce_all(records if len(records) <= READY_SLICE else records[at : at + READY_SLICE])
            self._require_lease()
        pen.serve()
        for part in parts:
            opened.ready(part)

    def _produce(self, part: Encoded) -> None:
        records, facts = part.records, part.facts
        produce = self._tools.pen.produce
        any_takes = min((each.known_bytes_max for each in facts.values()), default=0) - RECORD_OVERHEAD_BYTES
        for number, (topic, key, value, headers, key_hash) in enumerate(records, 1):
            size = (len(key) if key else 0) + (len(value) if value else 0)
            if size > self._open.largest_bytes:
                self._open.largest_bytes, self._open.largest_topic = size, topic
            if size > any_takes and size + RECORD_OVERHEAD_BYTES > (limit := facts[topic].known_bytes_max):
                raise self._too_large(records[number - 1], part.changes, size, limit)
            # Records without a key share one partition: a truncate keeps its place among them.
            partition = (key_hash & _POSITIVE) % facts[topic].partitions if key_hash is not None else 0
            produce(topic, key, value, partition, headers)
            if number % LEASE_CHECK_RECORDS == 0:
                self._require_lease()
        self._tools.pen.serve()
        self._open.encoded(records, part.changes)

    def _commit(self, reason: Reason) -> None:
        """Watermark and position in the transaction of the data (INV-2), the position as its last record."""
        pen, started = self._tools.pen, self._tools.clock()
        self._begin()
        if self.watermark is not None:
            self._produce_watermark(self.watermark)
        if started - self._open.since > FLUSH_FIRST_AFTER_S:
            pen.flush(FLUSH_TIMEOUT_S)
        position = self._pending if self._open.records or self._pending != self.committed else None
        position_bytes = self._produce_position(position) if position is not None else 0
        self._require_lease()
        hit("source.before_commit")
        try:
            pen.commit()
        except CdcError as error:
            raise self._named(error, position_bytes) from error
        hit("source.after_commit")
        self._count(started, reason)
        if position is not None:
            if self.committed is None:
                hit("source.first_stored")
            self.committed = position
            hit("source.before_ack")
            self._tools.task.ack(position)  # INV-1: the commit has returned
        self._pending = None

    def _count(self, started: float, reason: Reason) -> None:
        counters = self._tools.counters
        counters.committed(self._open, self._tools.clock() - started, reason)
        counters.late(self._open, self._place.watermark_topic.rpartition(".")[0], reason)
        self._watermark_written = self._tools.clock()
        self._open = Open()
        self.on_commit()

    def _produce_watermark(self, watermark: JsonObject) -> None:
        place = self._place
        key = _json({"connector": place.connector, "task": place.task})
        self._tools.topics(place.watermark_topic)
        self._tools.pen.produce(place.watermark_topic, key, _json({"v": 1, **watermark}), 0)

    def _produce_position(self, position: JsonObject) -> int:
        """The record's size in bytes."""
        place = self._place
        stored = StoredPosition(place.incarnation, place.task_epoch, position)
        value = _json(offset_value(stored))
        self._tools.pen.produce(place.offsets_topic, place.offsets_key.encode(), value, place.offsets_partition)
        return len(place.offsets_key) + len(value)

    def _settled(self, until: float) -> bool:
        if self._at_boundary:
            if self._tools.pen.opened_at is not None or self._pending is not None:
                self._commit("stop")
            return True
        if self._tools.clock() < until:
            return False
        self._tools.pen.abort()
        log.info("open transaction aborted for a stop records=%d", self._open.records)
        return True

    def _require_lease(self) -> None:
        if not self._tools.control.leased():
            raise CdcError(LEASE_LAPSED, "the worker's lease has lapsed")

    def _require_time(self) -> None:
        if self._tools.pen.opened_at is None:
            return
        open_ms = (self._tools.clock() - self._open.since) * 1000
        if open_ms > 0.9 * self._limits.transaction_timeout_ms:
            where = {"records": self._open.records, "open_ms": int(open_ms)}
            raise CdcError(TRANSACTION_TOO_LONG, "the Kafka transaction is about to time out", where=where)

    def _named(self, error: CdcError, position_bytes: int) -> CdcError:
        """The broker does not say which record was too large: the position's, where all others fit or are smaller."""
        if error.code != kafka_errors.RECORD_TOO_LARGE:
            return error
        topic, largest = self._open.largest_topic, self._open.largest_bytes
        limit = self._tools.topics(topic).record_bytes_max if topic else None
        fits = limit is not None and largest + RECORD_OVERHEAD_BYTES <= limit
        where: dict[str, str | int]
        if position_bytes > largest or (position_bytes and fits):
            where = {"topic": self._place.offsets_topic, "bytes": position_bytes}
            return CdcError(POSITION_TOO_LARGE, "the broker refused the position's record for its size", where=where)
        where = {"topic": topic, "bytes": largest}
        return CdcError(RECORD_TOO_LARGE, "the broker refused a record for its size", where=where)

    def _too_large(self, record: OutRecord, changes: Sequence[Change], size: int, limit: int) -> CdcError:
        where: dict[str, str | int] = {"topic": record.topic, "bytes": size, "bytes_max": limit}
        for change in changes:
            # Of the same size, not the same: records carry the time at which they were made.
            if any(_alike(made, record) for made in self._tools.encoder.encode((change,))):
                where |= {"table": ".".join(change.table.path), "lsn": change.position.commit_lsn}
                where |= {"tx_index": change.position.tx_index}
                break
        return CdcError(
            RECORD_TOO_LARGE, "a change is larger than its topic or this worker's producer allows", where=where
        )


def _alike(one: OutRecord, other: OutRecord) -> bool:
    sizes = [len(record.value or b"") for record in (one, other)]
    return (one.topic, one.key) == (other.topic, other.key) and abs(sizes[0] - sizes[1]) < RECORD_OVERHEAD_BYTES


def _json(value: JsonObject) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
