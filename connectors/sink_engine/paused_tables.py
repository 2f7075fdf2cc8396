"""Tables that a change of schema or broken files have stopped: they alone stand still, at their offsets in the ledger, and are tried
again less and less often."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from cdcworker.connectors.api.table_batch import SinkBatch
from cdcworker.connectors.sink_errors import DATA_LOST, TARGET_BROKEN
from cdcworker.connectors.warehouses.staged_rows import add
from cdcworker.connectors.warehouses.table_refusals import errors_of, topic_of, written_of
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.topics import source_of

log = logging.getLogger(__name__)

RETRY_S_MIN = 30.0
RETRY_S_MAX = 600.0


class PausedTables:
    """The paused tables of a task by topic, with the error that stopped each. Without `enabled` nothing is paused: the error
    stops the task."""

    def __init__(self, enabled: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._enabled = enabled
        self._clock = clock
        self._errors: dict[str, CdcError] = {}
        self._trying: dict[str, CdcError] = {}
        """The last errors of tables that are read again. Each counts until something of its table is applied."""
        self._unclaimed: set[str] = set()
        """Topics that could not even be claimed."""
        self._tries: dict[str, int] = {}
        self._due: dict[str, float] = {}

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(self._errors)

    @property
    def reasons(self) -> dict[str, str]:
        """The message of each table's error by topic; tables that are tried again are included."""
        return {topic: error.message for topic, error in {**self._trying, **self._errors}.items()}

    def numbers(self) -> dict[str, Any]:
        reasons = self.reasons
        return {"paused": reasons, "tables_held": len(reasons)}

    def take(self, error: CdcError) -> bool:
        """Pauses the tables that an error names; returns whether it stops single tables only."""
        taken = [self._take(each) for each in errors_of(error)]
        return any(taken)

    def _take(self, error: CdcError) -> bool:
        topic = topic_of(error)
        if not self._enabled or not topic or topic in self._errors:
            return False
        self._pause(topic, error)
        return True

    def _pause(self, topic: str, error: CdcError) -> None:
        self._errors[topic] = error
        self._trying.pop(topic, None)
        self._unclaimed.discard(topic)
        tries = self._tries[topic] = self._tries.get(topic, 0) + 1
        delay = min(RETRY_S_MAX, RETRY_S_MIN * 2 ** (tries - 1))
        self._due[topic] = self._clock() + delay
        log.warning("table is paused topic=%s retry_s=%.0f error=%s", topic, delay, error)

    def _end_trying(self, topics: Iterable[str]) -> None:
        """Takes tables that were tried again for ordinary ones."""
        for topic in topics:
            self._trying.pop(topic, None)
            self._unclaimed.discard(topic)

    def without(self, batch: SinkBatch) -> SinkBatch:
        """Returns the batch without the rows and offsets of paused tables."""
        if not self._errors:
            return batch
        return replace(
            batch,
            tables=[table for table in batch.tables if table.table not in self._errors],
            offsets={place: span for place, span in batch.offsets.items() if place[0] not in self._errors},
            applied={place: span for place, span in batch.applied.items() if place[0] not in self._errors},
            moments={topic: pairs for topic, pairs in batch.moments.items() if topic not in self._errors},
            dead=[letter for letter in batch.dead if letter.topic not in self._errors],
            through={
                source: replace(mark, left_out=tuple(sorted({*mark.left_out, *self._of(source)})))
                for source, mark in batch.through.items()
            },
        )

    def _of(self, source: str) -> list[str]:
        """Paused tables of a source."""
        return [topic.removeprefix(f"{source}.") for topic in self._errors if source_of(topic) == source]

    def due(self) -> bool:
        """Returns whether it is time to read some of the paused tables again, from where the ledger has them."""
        return bool(self._overdue())

    def _overdue(self) -> list[str]:
        now = self._clock()
        return [topic for topic in self._errors if now >= self._due[topic]]

    def reading(self, topics: Sequence[str]) -> list[str]:
        """The topics to read now; with those that were paused once they are due."""
        if due := self._overdue():
            log.info("paused tables are tried again topics=%d", len(due))
            self._trying.update((topic, self._errors.pop(topic)) for topic in due)
        return [topic for topic in topics if topic not in self._errors]

    def claim(self, claim: Callable[[Sequence[str]], None], topics: Sequence[str]) -> None:
        """Claims all topics, without those whose files are broken."""
        while True:
            broken = {topic for topic, error in self._errors.items() if error.code == TARGET_BROKEN}
            try:
                claim([topic for topic in topics if topic not in broken])
            except CdcError as exc:
                if not self.take(exc):
                    raise
                self._unclaimed.add(str(exc.where["topic"]))
            else:
                # Their files are whole again, whether rows of theirs come or not.
                self._end_trying([topic for topic in self._trying if topic in self._unclaimed])
                return

    def checked(self, check: Callable[[Mapping[str, int]], None], partitions: Mapping[str, int]) -> Mapping[str, int]:
        """Returns the partition counts of the topics that pass the check. Kafka may have deleted records of a table that was paused for
        long: then that table alone is paused again. CdcError DATA_LOST of any other topic ends the task."""
        while True:
            left = {topic: count for topic, count in partitions.items() if topic not in self._errors}
            try:
                check(left)
            except CdcError as exc:
                topic = str(exc.where.get("topic", "")) if exc.where else ""
                if exc.code != DATA_LOST or topic not in self._trying:
                    raise
                self._pause(topic, exc)
            else:
                self._end_trying([topic for topic, error in self._trying.items() if error.code == DATA_LOST])
                return left

    def apply(
        self, write: Callable[[SinkBatch], Mapping[str, Any]], batch: SinkBatch
    ) -> tuple[SinkBatch, Mapping[str, Any]]:
        """Applies a batch without paused tables, and without those that must be paused now; returns what was applied, and
        counts."""
        return self.apply_all(lambda batches: write(next(iter(batches))), [batch])

    def apply_all(
        self, write: Callable[[Iterable[SinkBatch]], Mapping[str, Any]], batches: Iterable[SinkBatch]
    ) -> tuple[SinkBatch, Mapping[str, Any]]:
        """Applies batches that are written in one step, again when tables had to be paused; returns a summary of what was
        applied, and counts."""
        written: list[Mapping[str, Any]] = []
        while True:
            left = _Left(self.without, batches)
            try:
                counts = write(left) if left.any() else {}
            except CdcError as exc:
                if not self.take(exc):
                    raise
                written += written_of(exc)
            else:
                # A table that takes rows again is as good as any.
                for topic in left.tables:
                    self._tries.pop(topic, None)
                self._end_trying(left.tables.union(topic for batch in left.passed for topic, _ in batch.offsets))
                return summed(left.passed), together(counts, written)


class _Left(Iterable[SinkBatch]):
    """Batches without the rows of paused tables. They may be iterated again; `passed` and `tables` are of the last iteration."""

    def __init__(self, without: Callable[[SinkBatch], SinkBatch], batches: Iterable[SinkBatch]) -> None:
        self._without = without
        self._batches = batches
        self._begun: Iterator[SinkBatch] | None = None
        self.passed: list[SinkBatch] = []
        self.tables: set[str] = set()
        """Topics with rows."""

    def any(self) -> bool:
        """Returns whether a batch is left; the next iteration does not build it again."""
        found = self._each()
        first = next(found, None)
        self._begun = None if first is None else chain([first], found)
        return first is not None

    def __iter__(self) -> Iterator[SinkBatch]:
        begun, self._begun = self._begun, None
        return self._each() if begun is None else begun

    def _each(self) -> Iterator[SinkBatch]:
        self.passed.clear()
        self.tables.clear()
        for batch in self._batches:
            left = self._without(batch)
            if left.offsets or left.through:
                # Without their rows, which would all be held until the last batch is written.
                self.passed.append(replace(left, tables=[]))
                self.tables.update(table.table for table in left.tables)
                yield left


def together(counts: Mapping[str, Any], written: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Returns the counts of the last pass, if it applied anything, added to those of the passes before."""
    if not counts or not written:
        return counts
    total = {**counts, "tables": dict(counts["tables"])}
    for each in written:
        add(total, each)
    return total


def summed(batches: Sequence[SinkBatch]) -> SinkBatch:
    """Returns one batch without rows that covers the offsets, positions and times of several."""
    offsets: dict[tuple[str, int], tuple[int, int]] = {}
    applied: dict[tuple[str, int], tuple[bytes, int]] = {}
    for batch in batches:
        for place, (first, end) in batch.offsets.items():
            offsets[place] = (offsets.get(place, (first, end))[0], end)
        for place, (position, ts_ms) in batch.applied.items():
            known = applied.get(place, (b"", 0))
            applied[place] = (max(known[0], position), max(known[1], ts_ms))
    dead = [letter for batch in batches for letter in batch.dead]
    moments: dict[str, list[tuple[Any, Any]]] = {}
    for batch in batches:
        for topic, pairs in batch.moments.items():
            moments.setdefault(topic, []).extend(pairs)
    return SinkBatch([], offsets, batches[-1].batch_id if batches else 0, applied, dead, moments=moments)
