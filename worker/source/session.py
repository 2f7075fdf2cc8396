"""One life of a source task between two openings: poll, encode, produce, commit, acknowledge."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, Protocol, cast, runtime_checkable

from cdcworker.connectors.api.source import SourceTask
from cdcworker.coordinator.kafka import errors as kafka_errors
from cdcworker.coordinator.log.offset_records import OffsetRecord, offset_value
from cdcworker.schemas import failpoints
from cdcworker.schemas.change import Change, EncodedRecords, JsonObject, OutRecord, PollBatch
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.protocol.control import TaskControl
from cdcworker.worker.protocol.heartbeat import HEARTBEAT
from cdcworker.worker.source.counters import Counters, OpenTransactionCounts, Reason
from cdcworker.worker.source.refused_records import require_keys, with_table
from cdcworker.worker.source.topic_facts import TopicFacts, TopicLookups
from cdcworker.worker.source.topic_guard import named

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
WATERMARK_TOPIC_S: Final = 5.0
"""How often the topic of the watermark is looked at: it is created where it is missing, and reported as in use."""
RECORD_OVERHEAD_BYTES: Final = 100
"""What a record batch of one record adds to key, value and headers, rounded up."""
_POSITIVE: Final = 0x7FFFFFFF


def _json_writer() -> Callable[[Any, int], Iterable[str]]:
    """Returns what writes a value as parts of a JSON text: `JSONEncoder` makes the same anew for each text."""
    encoder = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return lambda value, _: encoder.iterencode(value)
    writer: Callable[[Any, int], Iterable[str]] = make(
        None, encoder.default, json.encoder.encode_basestring, None, ":", ",", False, False, True
    )
    return writer


_chunks: Final = _json_writer()


class RecordProducer(Protocol):
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


@runtime_checkable
class FiltersRecords(Protocol):
    """An encoder whose transforms leave records out."""

    def take_filtered(self) -> Mapping[str, int]:
        """Returns how many records each transform has left out since the last call, by its name in the config."""


@dataclass(frozen=True, slots=True)
class TransactionLimits:
    """A transaction is committed at the first boundary after any of these."""

    records_max: int = 20_000
    bytes_max: int = 8_000_000
    ms_max: int = 200
    transaction_timeout_ms: int = 900_000
    split_bytes: int = 1 << 30
    """From here on a source transaction is committed in parts, at the latest after half of the time-out."""


@dataclass(frozen=True, slots=True)
class RecordTargets:
    """The topics that a session writes to besides its data topics, and the task that it writes as."""

    connector: str
    task: int
    incarnation: str
    task_epoch: int
    offsets_topic: str
    offsets_partition: int
    offsets_key: str
    watermark_topic: str


@dataclass(frozen=True, slots=True)
class EncodedChanges:
    """Records that the encoder made of changes, the facts of their topics, and how many records each transform left out."""

    records: Sequence[OutRecord]
    changes: Sequence[Change]
    facts: dict[str, TopicFacts]
    filtered: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SessionParts:
    """The parts that a session works with; all are its own and die with it, the topics excepted. `on_tick` is called after
    each batch, `on_commit` after each commit."""

    producer: RecordProducer
    task: SourceTask
    encoder: ChangeEncoder
    topics: TopicLookups
    control: TaskControl
    counters: Counters
    on_tick: Callable[[DeliverySession], None]
    on_commit: Callable[[], None]
    clock: Callable[[], float] = field(default=time.monotonic)


def lease_lapsed() -> CdcError:
    """The error of a task whose worker may not own it any more."""
    return CdcError(LEASE_LAPSED, "the worker's lease has lapsed")


def require_lease(control: TaskControl) -> None:
    """Raises `source.lease_lapsed` when the worker may not own the task any more."""
    if not control.leased():
        raise lease_lapsed()


class DeliverySession:
    """Runs until the task is to stop or pause, or an error ends it. After an error it is thrown away whole."""

    def __init__(
        self, parts: SessionParts, targets: RecordTargets, limits: TransactionLimits, committed: JsonObject | None
    ) -> None:
        self._parts = parts
        self._producer = parts.producer
        self._filters = parts.encoder if isinstance(parts.encoder, FiltersRecords) else None
        self._targets = targets
        self._limits = limits
        self.committed = committed
        self._pending: JsonObject | None = None
        self._pending_since = 0.0
        # Before the first change the task stands at the committed position: that is a boundary.
        self._at_boundary = True
        self._open = OpenTransactionCounts()
        self.watermark: JsonObject | None = None
        self.is_idle = False
        """Whether the last batch said that its source had run dry."""
        self._watermark_written = self._watermark_topic_at = float("-inf")
        self._prefix = targets.watermark_topic.rpartition(".")[0]
        self._watermark_key = _json({"connector": targets.connector, "task": targets.task})
        self._position_key = targets.offsets_key.encode()
        self._position_value = offset_value(OffsetRecord(targets.incarnation, targets.task_epoch, {}))

    def run(self) -> None:
        """Returns with everything committed, or aborted where the source's transaction did not end in time."""
        control, poll, on_tick = self._parts.control, self._parts.task.poll, self._parts.on_tick
        leased = control.leased
        stage_s = self._parts.counters.stage_s
        settle_until: float | None = None
        while True:
            if control.interrupted():
                settle_until = settle_until or self._parts.clock() + SETTLE_S
                if self._settled(settle_until):
                    return
            began = time.perf_counter()
            batch = poll()
            if batch.changes or batch.records:  # else it has waited
                stage_s["read"] += time.perf_counter() - began
            if not leased():
                raise lease_lapsed()
            try:
                self.take(batch)
            except CdcError as error:
                # A broker refuses a batch of records at any later call.
                raise with_table(error, self._parts.encoder) from error
            # The next one would be made while this one is still held.
            del batch
            HEARTBEAT.beat("the next poll")
            on_tick(self)

    def take(self, batch: PollBatch) -> None:
        """One batch: produced, and committed with what is open when it is time."""
        parts = self._parts
        parts.counters.polls += 1
        if batch.changes or batch.records:
            began = time.perf_counter()
            # All are encoded before anything is produced.
            runs = self._runs(batch)
            encoded = time.perf_counter()
            parts.counters.stage_s["encode"] += encoded - began
            if batch.position is None and self._at_boundary and self._producer.opened_at is not None:
                # A long transaction begins: what is complete must not wait for its end.
                self._commit("large")
                encoded = time.perf_counter()
            if self._producer.opened_at is None:
                self._begin()
            if failpoints.active:
                failpoints.hit("source.before_produce")
            for run in runs:
                if isinstance(run, EncodedChanges):
                    self._produce(run)
                    continue
                records = self._open.ready(run)
                for at in range(0, len(records), READY_SLICE):
                    if at:
                        require_lease(self._parts.control)
                    self._producer.produce_all(
                        records if len(records) <= READY_SLICE else records[at : at + READY_SLICE]
                    )
            parts.counters.stage_s["produce"] += time.perf_counter() - encoded
            self._at_boundary = False
            if failpoints.active:
                failpoints.hit("source.half_produced" if batch.position is None else "source.produced")
        self._end_batch(batch)

    def _end_batch(self, batch: PollBatch) -> None:
        """Notes the batch's position and watermark, and commits when it is time."""
        self.is_idle = batch.idle
        if batch.position is not None:
            self._at_boundary = True
            if self._pending is None:
                self._pending_since = self._parts.clock()
            self._pending = batch.position
        if batch.watermark is not None:
            self.watermark = batch.watermark
        reason = self._due(batch)
        if reason:
            self._commit(reason)
        elif batch.part is not None and self._outgrown():
            log.info("part of a source transaction is committed records=%d", self._open.records)
            self._pending = batch.part
            self._commit("part")
        if self._producer.opened_at is not None:
            self._require_time()

    def _runs(self, batch: PollBatch) -> list[list[EncodedRecords] | EncodedChanges]:
        """Returns the batch in runs, in the order of its changes: lists of records that the source encoded, and changes that are
        encoded here."""
        if not batch.records and set(map(type, batch.changes)) == {EncodedRecords}:
            return [batch.changes]  # type: ignore[list-item]
        runs: list[list[EncodedRecords] | EncodedChanges] = []
        changes: list[Change] = []
        for kind, items in groupby(batch.changes, type):
            if kind is EncodedRecords:
                if changes:
                    runs.append(self._encoded(changes))
                    changes = []
                runs.append(cast("list[EncodedRecords]", [*items]))
            else:
                changes = cast("list[Change]", [*items])
        if changes or batch.records:
            runs.append(self._encoded(changes, batch.records))
        return runs

    def _encoded(self, changes: Sequence[Change], more: Sequence[OutRecord] = ()) -> EncodedChanges:
        records = [*self._parts.encoder.encode(changes), *more]
        filtered = self._filters.take_filtered() if self._filters is not None else {}
        try:
            facts = self._parts.topics.all({record.topic for record in records})
        except CdcError as error:
            raise named(error, self._parts.encoder, changes) from error
        require_keys(records, facts, self._parts.encoder)
        return EncodedChanges(records, changes, facts, filtered)

    def _due(self, batch: PollBatch) -> Reason:
        """INV-3: only at a boundary. When the stream ran dry at once, else when a limit is reached."""
        if not self._at_boundary:
            return ""
        now, held, limits = self._parts.clock(), self._open, self._limits
        if self._producer.opened_at is None and (self._pending is None or self._pending == self.committed):
            overdue = now - self._watermark_written >= WATERMARK_INTERVAL_S
            return "watermark" if batch.idle and self.watermark is not None and overdue else ""
        if batch.idle:
            return "idle"
        if held.records >= limits.records_max:
            return "records"
        if held.bytes >= limits.bytes_max:
            return "bytes"
        since = held.since if self._producer.opened_at is not None else self._pending_since
        return "time" if (now - since) * 1000 >= limits.ms_max else ""

    def _outgrown(self) -> bool:
        """The one exception to INV-3: what no Kafka transaction can hold is resumed by index in the source's."""
        if self._producer.opened_at is None:
            return False
        open_ms = (self._parts.clock() - self._open.since) * 1000
        return self._open.bytes >= self._limits.split_bytes or open_ms >= self._limits.transaction_timeout_ms / 2

    def _begin(self) -> None:
        self._open.since = self._parts.clock()
        self._producer.begin()
        if failpoints.active:
            failpoints.hit("source.begun")

    def _produce(self, part: EncodedChanges) -> None:
        records, facts = part.records, part.facts
        produce = self._producer.produce
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
                require_lease(self._parts.control)
        self._producer.serve()
        self._open.encoded(records, part.changes, part.filtered)

    def _commit(self, reason: Reason) -> None:
        """Watermark and position in the transaction of the data (INV-2), the position as its last record."""
        started = self._parts.clock()
        if self._producer.opened_at is None:
            self._begin()
        if self.watermark is not None:
            self._produce_watermark(self.watermark, started)
        if started - self._open.since > FLUSH_FIRST_AFTER_S:
            self._producer.flush(FLUSH_TIMEOUT_S)
        position = self._pending if self._open.records or self._pending != self.committed else None
        position_bytes = self._produce_position(position) if position is not None else 0
        require_lease(self._parts.control)
        if failpoints.active:
            failpoints.hit("source.before_commit")
        try:
            self._producer.commit()
        except CdcError as error:
            raise self._named(error, position_bytes) from error
        if failpoints.active:
            failpoints.hit("source.after_commit")
        now = self._parts.clock()
        self._parts.counters.committed(self._open, now - started, reason, self._prefix)
        self._watermark_written = now
        self._open = OpenTransactionCounts()
        self._parts.on_commit()
        if position is not None:
            if failpoints.active and self.committed is None:
                failpoints.hit("source.first_stored")
            self.committed = position
            if failpoints.active:
                failpoints.hit("source.before_ack")
            self._parts.task.ack(position)  # INV-1: the commit has returned
        self._pending = None

    def _produce_watermark(self, watermark: JsonObject, now: float) -> None:
        topic = self._targets.watermark_topic
        if now - self._watermark_topic_at >= WATERMARK_TOPIC_S:
            self._watermark_topic_at = now
            self._parts.topics(topic)
        self._producer.produce(topic, self._watermark_key, "".join(_chunks({"v": 1, **watermark}, 0)).encode(), 0)

    def _produce_position(self, position: JsonObject) -> int:
        """The record's size in bytes."""
        targets = self._targets
        value = "".join(_chunks({**self._position_value, "position": position}, 0)).encode()
        self._producer.produce(targets.offsets_topic, self._position_key, value, targets.offsets_partition)
        return len(self._position_key) + len(value)

    def _settled(self, until: float) -> bool:
        """Returns whether the session may end for a stop or a pause: at a boundary, with everything committed, or after `until`,
        with the open transaction aborted."""
        if self._at_boundary:
            if self._producer.opened_at is not None or self._pending is not None:
                self._commit("stop")
            return True
        if self._parts.clock() < until:
            return False
        self._producer.abort()
        log.info("open transaction aborted for a stop records=%d", self._open.records)
        return True

    def _require_time(self) -> None:
        open_ms = (self._parts.clock() - self._open.since) * 1000
        if open_ms > 0.9 * self._limits.transaction_timeout_ms:
            where = {"records": self._open.records, "open_ms": int(open_ms)}
            raise CdcError(TRANSACTION_TOO_LONG, "the Kafka transaction is about to time out", where=where)

    def _named(self, error: CdcError, position_bytes: int) -> CdcError:
        """Returns a refusal for size with the topic whose record was too large. Where the broker does not say which it was: the
        position's, if all others fit or are smaller. Other errors stay as they are."""
        if error.code != kafka_errors.RECORD_TOO_LARGE:
            return error
        told, largest = str(error.where.get("topic", "")), self._open.largest_bytes
        topic, position_topic = told or self._open.largest_topic, self._targets.offsets_topic
        limit = self._parts.topics(topic).record_bytes_max if topic and topic != position_topic else None
        fits = limit is not None and largest + RECORD_OVERHEAD_BYTES <= limit
        where: dict[str, str | int]
        if told == position_topic or (not told and (position_bytes > largest or (position_bytes and fits))):
            where = {"topic": self._targets.offsets_topic, "bytes": position_bytes}
            return CdcError(POSITION_TOO_LARGE, "the broker refused the position's record for its size", where=where)
        where = {"topic": topic, "bytes": largest}
        return CdcError(RECORD_TOO_LARGE, "the broker refused a record for its size", where=where)

    def _too_large(self, record: OutRecord, changes: Sequence[Change], size: int, limit: int) -> CdcError:
        where: dict[str, str | int] = {"topic": record.topic, "bytes": size, "bytes_max": limit}
        for change in changes:
            # Of the same size, not the same: records carry the time at which they were made.
            if any(_alike(made, record) for made in self._parts.encoder.encode((change,))):
                where |= {"table": ".".join(change.table.path), "commit_lsn": change.position.commit}
                where |= {"tx_index": change.position.event}
                break
        return CdcError(
            RECORD_TOO_LARGE, "a change is larger than its topic or this worker's producer allows", where=where
        )


def _alike(one: OutRecord, other: OutRecord) -> bool:
    sizes = [len(record.value or b"") for record in (one, other)]
    return (one.topic, one.key) == (other.topic, other.key) and abs(sizes[0] - sizes[1]) < RECORD_OVERHEAD_BYTES


def _json(value: JsonObject) -> bytes:
    return "".join(_chunks(value, 0)).encode()
