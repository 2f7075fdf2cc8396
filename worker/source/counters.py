"""The counts of a source task: totals over its life, those of the open Kafka transaction, and those of each table."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import Any, Final, Literal

from cdcworker.connectors.telemetry.latency import LatencyHistogram
from cdcworker.connectors.telemetry.table_labels import TABLES_MAX, TableLabels
from cdcworker.schemas.change import Change, EncodedRecords, OutRecord

Reason = Literal["", "idle", "records", "bytes", "time", "large", "part", "stop", "watermark"]
"""Why a Kafka transaction was committed. `large`: before a transaction that goes on; `part`: of such a one; `watermark`:
only to say how far the source has been read. Empty: not yet."""
Stage = Literal["read", "encode", "produce", "commit"]
STREAMED: Final = frozenset("cudtm")
"""Operations whose record has the time of their commit. Rows of a snapshot were committed at some time before."""
VALUE: Final = 1
"""Where a record's value stands among a producer's arguments."""
SHARES_S: Final = 60.0
"""The half-life of the bytes by which tables are compared."""


@dataclass(slots=True)
class OpenTransactionCounts:
    """Counts of what the open Kafka transaction holds."""

    records: int = 0
    bytes: int = 0
    since: float = 0.0
    largest_bytes: int = 0
    largest_topic: str = ""
    topics: dict[str, int] = field(default_factory=dict)
    """How many records by topic."""
    topic_bytes: dict[str, int] = field(default_factory=dict)
    newest_ms: dict[str, int] = field(default_factory=dict)
    """By topic, when its last change was committed in the source."""
    moments_ms: dict[int, int] = field(default_factory=dict)
    """How many changes were committed in the source at each moment."""
    filtered: dict[str, int] = field(default_factory=dict)
    """How many records each transform left out."""

    def ready(self, parts: Sequence[EncodedRecords]) -> Sequence[tuple[Any, ...]]:
        """Counts what a source wrote itself, and returns its records as one sequence: with small parts the calls would cost
        more than their records. Each part is of one commit time, or rows that were loaded. A tombstone is no change."""
        for part in parts:
            number = len(part.records)
            self.records += number
            self.bytes += part.bytes
            if part.largest > self.largest_bytes:
                self.largest_bytes, self.largest_topic = part.largest, part.largest_topic
            mean = part.bytes / number if number else 0.0
            for topic, count in part.counts.items():
                self.topics[topic] = self.topics.get(topic, 0) + count
                self.topic_bytes[topic] = self.topic_bytes.get(topic, 0) + round(mean * count)
                if part.ts_ms:
                    self.newest_ms[topic] = part.ts_ms
            if part.ts_ms:
                changes = number
                for record in part.records:
                    if record[VALUE] is None:
                        changes -= 1
                self.moments_ms[part.ts_ms] = self.moments_ms.get(part.ts_ms, 0) + changes
        return parts[0].records if len(parts) == 1 else list(chain.from_iterable(part.records for part in parts))

    def encoded(
        self,
        records: Sequence[OutRecord],
        changes: Sequence[Change],
        filtered: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Counts records that were encoded here, the changes that they are of, and those that transforms left out."""
        for transform, number in filtered.items():
            self.filtered[transform] = self.filtered.get(transform, 0) + number
        self.records += len(records)
        for topic, key, value, _, _ in records:
            size = (len(key) if key else 0) + (len(value) if value else 0)
            self.bytes += size
            self.topics[topic] = self.topics.get(topic, 0) + 1
            self.topic_bytes[topic] = self.topic_bytes.get(topic, 0) + size
        found = (change.source.get("ts_ms") for change in changes if change.op in STREAMED)
        moments_ms = Counter[int](ts_ms for ts_ms in found if ts_ms)
        if moments_ms:
            for moment_ms, times in moments_ms.items():
                self.moments_ms[moment_ms] = self.moments_ms.get(moment_ms, 0) + times
            self.newest_ms.update(dict.fromkeys({record.topic for record in records}, max(moments_ms)))


DECAY_S: Final = 1.0
"""How often the bytes of earlier records are made to count less."""


class TableCounts:
    """Counts by table, within the bounds of `TableLabels`."""

    def __init__(self, tables_max: int = TABLES_MAX, clock: Callable[[], float] = time.monotonic) -> None:
        self._labels = TableLabels(tables_max)
        self._clock = clock
        self._decayed_at = clock()
        self._shares: dict[str, float] = {}
        self.records: dict[str, int] = {}
        self.lag_s: dict[str, float] = {}

    def add(self, prefix: str, held: OpenTransactionCounts, now_s: float, ran_dry: bool = False) -> None:
        """Counts what was committed to Kafka. Whatever else of a table waits came after the newest of it: a source is read in
        the order of its commits. `ran_dry`: nothing else waits."""
        now = self._clock()
        if now - self._decayed_at >= DECAY_S:
            kept = 0.5 ** ((now - self._decayed_at) / SHARES_S)
            self._decayed_at = now
            self._shares = {name: size * kept for name, size in self._shares.items()}
        late: dict[str, float] = {}
        names = self._labels.names
        for topic, count in held.topics.items():
            name = names.get(topic) or self._labels.of(topic, prefix)
            self.records[name] = self.records.get(name, 0) + count
            self._shares[name] = self._shares.get(name, 0.0) + held.topic_bytes.get(topic, 0)
            if topic in held.newest_ms:
                late[name] = max(late.get(name, 0.0), round(now_s - held.newest_ms[topic] / 1000, 3))
        newest_ms = max(held.newest_ms.values(), default=None)
        if ran_dry or newest_ms is not None:
            most = 0.0 if ran_dry or newest_ms is None else max(0.0, round(now_s - newest_ms / 1000, 3))
            for name, lag_s in self.lag_s.items():
                if lag_s > most:
                    self.lag_s[name] = most
        self.lag_s |= late

    def dry(self) -> None:
        """Notes that nothing waits of any table."""
        self.lag_s = dict.fromkeys(self.lag_s, 0.0)

    def lag_bytes(self, behind: float) -> dict[str, int]:
        """Returns the source's lag, dealt out as the bytes of each table's records have been lately."""
        total = sum(self._shares.values())
        return {name: round(behind * size / total) for name, size in self._shares.items()} if total else {}


@dataclass(slots=True)
class Counters:
    """Running totals over all sessions of a process."""

    records: int = 0
    bytes: int = 0
    commits: int = 0
    commit_s_total: float = 0.0
    commit_s_max: float = 0.0
    polls: int = 0
    latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    stage_s: dict[Stage, float] = field(default_factory=lambda: {"read": 0.0, "encode": 0.0, "produce": 0.0})
    flushes: dict[Reason, int] = field(default_factory=dict)
    tables: TableCounts = field(default_factory=TableCounts)
    batch_records: int = 0
    batch_bytes: int = 0
    filtered: dict[str, int] = field(default_factory=dict)

    def committed(self, held: OpenTransactionCounts, took_s: float, reason: Reason, prefix: str) -> None:
        """Counts a commit, and the latency of each change in it now that it can be read.
        `prefix`: that of the topics, without which tables are named."""
        self.records += held.records
        self.bytes += held.bytes
        self.commits += 1
        self.commit_s_total += took_s
        self.commit_s_max = max(self.commit_s_max, took_s)
        self.flushes[reason] = self.flushes.get(reason, 0) + 1
        for transform, number in held.filtered.items():
            self.filtered[transform] = self.filtered.get(transform, 0) + number
        now_s = time.time()
        if held.records:
            self.batch_records, self.batch_bytes = held.records, held.bytes
            self.latency.note_all(held.moments_ms, now_s)
        self.tables.add(prefix, held, now_s, reason == "idle")
        if reason == "watermark":
            self.tables.dry()

    def numbers(self) -> dict[str, Any]:
        """Returns the numbers of the tables that the worker shows as series."""
        stages = {**self.stage_s, "commit": self.commit_s_total}
        return {
            "stage_s": {name: round(seconds, 3) for name, seconds in stages.items()},
            "flushes": dict(self.flushes),
            "filtered_records": dict(self.filtered),
            "batch_records": self.batch_records,
            "batch_bytes": self.batch_bytes,
            "table_records": dict(self.tables.records),
            "table_lag_s": dict(self.tables.lag_s),
        }
