"""Tables that a schema change stopped, or files that are broken: they alone stand still, at their offsets in the ledger, and are tried again by and by."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from cdcworker.connectors.api import SinkBatch
from cdcworker.connectors.spark.config import source_of
from cdcworker.connectors.spark.errors import SCHEMA_REFUSED, TARGET_BROKEN
from cdcworker.schemas.errors import CdcError

log = logging.getLogger(__name__)

OF_A_TABLE = (SCHEMA_REFUSED, TARGET_BROKEN)
RETRY_S_MIN = 30.0
RETRY_S_MAX = 600.0


class PausedTables:
    """By topic, with what stopped it. Without `enabled` nothing is paused: the error is the task's."""

    def __init__(self, enabled: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._enabled = enabled
        self._clock = clock
        self._errors: dict[str, CdcError] = {}
        self._tries: dict[str, int] = {}
        self._due = 0.0

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(self._errors)

    @property
    def reasons(self) -> dict[str, str]:
        return {topic: error.message for topic, error in self._errors.items()}

    def numbers(self) -> dict[str, Any]:
        return {"paused": self.reasons, "tables_held": len(self._errors)}

    def take(self, error: CdcError) -> bool:
        """Whether the error stops one table only."""
        topic = str(error.where.get("topic", "")) if error.where else ""
        if not self._enabled or error.code not in OF_A_TABLE or not topic or topic in self._errors:
            return False
        self._errors[topic] = error
        tries = self._tries[topic] = self._tries.get(topic, 0) + 1
        delay = min(RETRY_S_MAX, RETRY_S_MIN * 2 ** (tries - 1))
        self._due = max(self._due, self._clock() + delay)
        log.warning("table is paused topic=%s retry_s=%.0f error=%s", topic, delay, error)
        return True

    def without(self, batch: SinkBatch) -> SinkBatch:
        """What is left of a batch for the others: rows and offsets."""
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
        """Whether it is time to read the paused tables again, from where the ledger has them."""
        return bool(self._errors) and self._clock() >= self._due

    def reading(self, topics: Sequence[str]) -> list[str]:
        """The topics to read now; with those that were paused once they are due."""
        if self.due():
            log.info("paused tables are tried again topics=%d", len(self._errors))
            self._errors.clear()
        return [topic for topic in topics if topic not in self._errors]

    def claim(self, claim: Callable[[Sequence[str]], None], topics: Sequence[str]) -> None:
        """All of them, but for those whose files are broken."""
        while True:
            broken = {topic for topic, error in self._errors.items() if error.code == TARGET_BROKEN}
            try:
                return claim([topic for topic in topics if topic not in broken])
            except CdcError as exc:
                if not self.take(exc):
                    raise

    def apply(
        self, write: Callable[[SinkBatch], Mapping[str, Any]], batch: SinkBatch
    ) -> tuple[SinkBatch, Mapping[str, Any]]:
        """What was applied of the batch: all, but for tables that are paused, or must be from now on."""
        return self.apply_all(lambda batches: write(next(iter(batches))), [batch])

    def apply_all(
        self, write: Callable[[Iterable[SinkBatch]], Mapping[str, Any]], batches: Iterable[SinkBatch]
    ) -> tuple[SinkBatch, Mapping[str, Any]]:
        """The same of batches that are written in one step, looked through again when a table stops; a summary of them."""
        while True:
            passed: list[SinkBatch] = []
            tables: set[str] = set()
            try:
                counts = self._write(write, batches, passed, tables)
            except CdcError as exc:
                if not self.take(exc):
                    raise
            else:
                # A table that takes rows again is as good as any.
                for topic in tables:
                    self._tries.pop(topic, None)
                return summed(passed), counts

    def _write(
        self,
        write: Callable[[Iterable[SinkBatch]], Mapping[str, Any]],
        batches: Iterable[SinkBatch],
        passed: list[SinkBatch],
        tables: set[str],
    ) -> Mapping[str, Any]:
        def each() -> Iterator[SinkBatch]:
            for batch in batches:
                left = self.without(batch)
                if left.offsets or left.through:
                    # Without their rows, which would all be held until the last batch is written.
                    passed.append(replace(left, tables=[]))
                    tables.update(table.table for table in left.tables)
                    yield left

        found = each()
        first = next(found, None)
        return {} if first is None else write(chain([first], found))


def summed(batches: Sequence[SinkBatch]) -> SinkBatch:
    """What several batches covered, as one without rows."""
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
