"""Batches that a Kafka consumer in this process reads: for warehouses that need no Spark."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.sink_engine.batch_source import (
    BATCH_BYTES_MAX,
    Partition,
    ReadBatch,
    ReadPlan,
    SourceState,
)
from cdcworker.connectors.sink_engine.metrics import SinkMetrics
from cdcworker.connectors.sink_engine.stage_progress import READING, StageProgress
from cdcworker.connectors.topic_reader import TopicReader
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Message

TRIGGER_S: Final = 0.25
"""How long records are gathered into one batch after its first record came."""
AT_ONCE: Final = 10_000
"""Records that one call of the consumer returns at most: between two calls the size of the batch is looked at."""


class KafkaBatchSource:
    """Reads topics from the ledger's offsets on with one consumer, without a group."""

    def __init__(
        self, settings: Mapping[str, Any], progress: StageProgress, metrics: SinkMetrics, trigger_s: float = TRIGGER_S
    ) -> None:
        """`settings` are those of a confluent-kafka consumer of committed records."""
        self._settings = settings
        self._progress = progress
        self._metrics = metrics
        self._trigger_s = trigger_s
        self._reader: TopicReader | None = None
        self._records_max = 0
        self._halting = False
        self._read_to: dict[Partition, int] = {}
        self._is_caught_up = False

    def start(self) -> None:
        """A consumer is there at once: nothing has to begin early."""

    def open(self, plan: ReadPlan) -> None:
        """Reads from the plan's offsets on."""
        self.end()
        self._halting = self._is_caught_up = False
        self._read_to = dict(plan.offsets)
        self._records_max = plan.records_max
        self._reader = TopicReader(self._settings, sorted(plan.partitions), plan.offsets, reports_ends=True)

    def next(self, timeout_s: float) -> ReadBatch | None:
        """Returns the next batch; an empty one where only markers of transactions have come."""
        reader = self._reader
        if reader is None or self._halting:
            return None
        first = reader.read(1, timeout_s)
        self._is_caught_up = not first
        if not first and self._read_to == {**self._read_to, **reader.read_to}:
            return None
        hit("sink.batch_start")
        began = time.monotonic()
        self._metrics.mark("batch")
        with self._progress.one(READING):
            records = records_table(self._gathered(reader, first))
        self._metrics.mark("read")
        self._read_to.update(reader.read_to)
        read_ms = round((time.monotonic() - began) * 1000)
        return ReadBatch(records, dict(self._read_to), records.num_rows, records.nbytes, read_ms)

    def _gathered(self, reader: TopicReader, messages: list[Message]) -> list[Message]:
        """Returns the first records with those that follow until the trigger's time is over or the batch is large
        enough."""
        deadline = time.monotonic() + self._trigger_s
        size = sum(map(_size_of, messages))
        while messages and len(messages) < self._records_max and size < BATCH_BYTES_MAX and not self._halting:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            more = reader.read(min(AT_ONCE, self._records_max - len(messages)), left_s)
            messages += more
            size += sum(map(_size_of, more))
        return messages

    def state(self) -> SourceState | None:
        """Returns that it waits for records."""
        return SourceState("the next records", 0.0, self._is_caught_up)

    def halt(self) -> None:
        """Begins no further batch."""
        self._halting = True

    def end(self) -> None:
        """Closes the consumer."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def lost(self) -> CdcError | None:
        """The consumer is in this process: it cannot end alone."""
        return None

    def close(self) -> None:
        """Closes the consumer."""
        self.end()


def _size_of(message: Message) -> int:
    return len(message.value() or b"") + len(message.key() or b"")


def records_table(messages: Sequence[Message]) -> pa.Table:
    """Returns records as a table with the columns of a batch, in the order of topic, partition and offset."""
    import pyarrow as pa

    ordered = sorted(messages, key=lambda message: (message.topic(), message.partition(), message.offset()))
    pairs = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = [message.headers() for message in ordered]
    return pa.table(
        {
            "topic": pa.array([message.topic() for message in ordered], pa.string()).dictionary_encode(),
            "partition": pa.array([message.partition() for message in ordered], pa.int32()),
            "offset": pa.array([message.offset() for message in ordered], pa.int64()),
            "key": pa.array([message.key() for message in ordered], pa.binary()),
            "value": pa.array([message.value() for message in ordered], pa.binary()),
            "headers": pa.array(
                [[{"key": name, "value": value} for name, value in found] if found else None for found in headers],
                pairs,
            ),
        }
    )
