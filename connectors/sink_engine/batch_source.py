"""Where a sink's batches come from: a query of Spark's, or a consumer of Kafka's in this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    import pyarrow as pa

Partition = tuple[str, int]

BATCH_BYTES_MAX: Final = 128 * 1024 * 1024
"""After a larger batch the next ones are smaller; several copies of a batch are in memory at a time."""
RECORDS_MIN: Final = 20
SHRINK: Final = 8
"""By what the number of records is divided when the process that reads has run out of memory."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The topics, offsets and batch size with which a source reads."""

    partitions: Mapping[str, int]
    """Number of partitions by topic."""
    offsets: Mapping[Partition, int]
    """The next offset by partition; a partition without one is read from its first record."""
    records_max: int
    """Bound of a batch."""


@dataclass(slots=True)
class ReadBatch:
    """The records of one batch as they were read. Whoever builds it takes them out, so that they are freed once they are built."""

    records: pa.Table | None
    """Columns topic, partition, offset, key, value, headers."""
    read_to: Mapping[Partition, int]
    """Where the batch ends in each partition, markers of transactions included."""
    rows: int
    size: int
    """In bytes."""
    read_ms: int

    def take(self) -> pa.Table:
        """Returns the records, which this batch holds no longer."""
        records, self.records = self.records, None
        return records


@dataclass(frozen=True, slots=True)
class SourceState:
    """The reason why a source has no batch at the moment."""

    doing: str
    """In words, for whoever supervises the task."""
    allow_s: float
    """How much longer than usual that may take."""
    is_caught_up: bool
    """Whether everything that is in the topics has been read."""


class SourceEnded(Exception):
    """The source reads no more although nobody stopped it. `error` says why."""

    def __init__(self, error: CdcError) -> None:
        super().__init__(str(error))
        self.error = error


class BatchSource(Protocol):
    """Reads committed records in batches. `start` is called once and `close` last; between them `open` and `end` come in pairs.
    One thread calls `next`, another one all other methods."""

    def start(self) -> None:
        """Begins whatever takes long before a first `open`; returns at once."""

    def open(self, plan: ReadPlan) -> None:
        """Reads from the plan's offsets on. Raises CdcError when that is not possible."""

    def next(self, timeout_s: float) -> ReadBatch | None:
        """Returns the next batch, in the order of each partition, without gaps and without repetition; None when there is none
        yet. Only with the next call may the records after it be read into memory. Raises CdcError for a batch that cannot be
        read, SourceEnded when there will be none."""

    def state(self) -> SourceState | None:
        """Returns what it is waiting for; None: nothing has changed since the last call. Called while no batch is under way."""

    def halt(self) -> None:
        """Begins no further batch; a call of `next` returns soon."""

    def end(self) -> None:
        """Reads no more of the plan, after `halt`; may be called without an `open` and twice."""

    def lost(self) -> CdcError | None:
        """Returns why, if the process that reads has ended, as it does when batches are too large for its memory; then the next
        `open` starts another one. None: it has not."""

    def close(self) -> None:
        """Frees everything, also after an error; never raises."""


class BatchLimit:
    """The number of records that a batch may have. It only falls."""

    def __init__(self, records: int) -> None:
        self.configured = records
        self.records = records

    def bound(self, rows: int, size: int) -> None:
        """Takes the size of a batch in bytes. Sources count records only: where they are large, fewer of them make a batch."""
        if size > BATCH_BYTES_MAX:
            self.records = min(self.records, max(RECORDS_MIN, rows * BATCH_BYTES_MAX // (2 * size)))

    def shrink(self) -> bool:
        """Makes the next batches much smaller; returns False when they are as small as can be."""
        if self.records // SHRINK < RECORDS_MIN:
            return False
        self.records //= SHRINK
        return True
