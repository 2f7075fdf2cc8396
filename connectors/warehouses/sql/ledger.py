"""The sink's bookkeeping in tables of the target: what of it is the same whatever the server's statements are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from cdcworker.connectors.api.table_batch import DeadLetter, SinkBatch, VisibleThrough
from cdcworker.connectors.sink_errors import FENCED, LEDGER_MOVED
from cdcworker.schemas.errors import CdcError

Epoch = tuple[int, int]
Partition = tuple[str, int]
C_contra = TypeVar("C_contra", contravariant=True)

LETTER: Final = ("topic", "partition", "offset", "code", "cause", "key", "value")
TOMBSTONE_DAYS_MAX: Final = 7
"""Tombstones of partitions that stand still are dropped after this: a late row would have to be older than that."""
COLUMNS: Final = "select colid, name from _cdcworker.columns where sink = %s and topic = %s"
"""A topic's columns by the source's identity of them."""
WRITTEN: Final = """select 1 from _cdcworker.columns c join _cdcworker.ledger l on l.sink = c.sink and l.topic = c.topic
    where c.sink = %s and c.topic = %s and l.applied is not null limit 1"""
"""Whether the sink has had a table for a topic and stands behind rows of it: not after its offsets were reset."""


class SqlLedger(Protocol[C_contra]):
    """Statements over the bookkeeping tables of one sink task; the caller owns the transactions."""

    sink: str

    def is_there(self, connection: C_contra) -> bool:
        """Returns whether there is a ledger to be read."""

    def create(self, connection: C_contra) -> None:
        """Makes the bookkeeping where it is not."""

    def claim(self, connection: C_contra, topics: list[str]) -> None:
        """Takes over the ledger rows of the topics, so that a task that had them before another split stops."""

    def read(self, connection: C_contra) -> dict[Partition, int]:
        """Returns the next offset of each partition."""

    def topic_ids(self, connection: C_contra) -> dict[str, str]:
        """Returns, by topic, the id of the Kafka topic that the offsets belong to, where it is known."""

    def know(self, connection: C_contra, ids: Mapping[str, str]) -> None:
        """Stores ids of Kafka topics."""

    def forget_ids(self, connection: C_contra, topics: Sequence[str] | None) -> None:
        """Forgets the ids of these topics, or of all: a person has altered their offsets."""

    def floors(self, connection: C_contra) -> dict[str, bytes]:
        """Returns, by topic, the position of its last TRUNCATE."""

    def set_floor(self, connection: C_contra, topic: str, position: bytes) -> None:
        """Stores the position of a TRUNCATE, unless a later one is known."""

    def tombstones(self, connection: C_contra) -> dict[str, bytes]:
        """Returns the highest position of the tombstones of each topic that has any."""

    def lock(self, connection: C_contra, batch: SinkBatch) -> bool:
        """Locks and compares fence and offsets. False: every offset of the batch has been applied before."""

    def touched(self) -> bool:
        """Returns whether a re-drive has changed the tables since the last call: see `hold`."""

    def hold(self, connection: C_contra, topics: Sequence[str]) -> None:
        """Keeps every task of the sink from applying batches until this transaction ends, and has it know of that."""

    def advance(self, connection: C_contra, batch: SinkBatch) -> None:
        """Moves every partition of the batch to its end (INV-8: in the transaction that applies the rows)."""

    def publish(self, connection: C_contra, through: Mapping[str, VisibleThrough]) -> None:
        """Stores the watermark that readers see from this transaction on."""

    def through(self, connection: C_contra) -> dict[str, int]:
        """Returns, by source, the position that was published last."""

    def applied(self, connection: C_contra) -> dict[str, bytes]:
        """Returns, by topic, the highest position that has been applied."""

    def add_dead_letters(self, connection: C_contra, letters: Sequence[DeadLetter]) -> None:
        """Stores records that are set aside."""

    def forget_letters(self, connection: C_contra) -> None:
        """Deletes dead letters behind the ledger's offsets: their records are read once more, and set aside again or not."""


def is_fresh(offsets: Mapping[Partition, tuple[int, int]], rows: Iterable[Sequence[Any]], epoch: Epoch) -> bool:
    """Returns whether a batch with these offsets, the first and the end of each partition, is still to be applied: False where all
    of it has been. `rows` are the ledger's: topic, partition, next offset, epoch. CdcError where a newer task applies one of the
    partitions, or a part of the batch has been applied."""
    replayed = 0
    for topic, partition, next_offset, task_epoch, attempt in rows:
        first, end = offsets[topic, partition]
        where = {"topic": topic, "partition": partition, "offset": next_offset}
        if (task_epoch, attempt) > epoch:
            raise CdcError(FENCED, "a newer task applies this partition", where=where)
        if next_offset >= end:
            replayed += 1
        elif next_offset > first:
            raise CdcError(LEDGER_MOVED, "the ledger stands inside the batch", where=where)
    if replayed and replayed < len(offsets):
        raise CdcError(LEDGER_MOVED, "a part of the batch has been applied before")
    return not replayed
