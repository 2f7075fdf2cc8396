"""What a source task counts: totals over its life, what the open Kafka transaction holds, and the same by table."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from cdcworker.connectors.latency import Latency
from cdcworker.connectors.tablenames import TABLES_MAX, TableNames
from cdcworker.schemas.change import Change, OutRecord, Ready

Reason = Literal["", "idle", "records", "bytes", "time", "large", "part", "stop", "watermark"]
"""Why a Kafka transaction was committed. `large`: before a transaction that goes on; `part`: of such a one; `watermark`:
only to say how far the source has been read. Empty: not yet."""
Stage = Literal["read", "encode", "produce", "commit"]
STREAMED: Final = frozenset("cudtm")
"""Operations that were committed when their record says. Rows that a snapshot loaded were so at some time before."""
VALUE: Final = 1
"""Where a record's value stands among a producer's arguments."""
SHARES_S: Final = 60.0
"""Over about so long the bytes of each table are compared."""


@dataclass(slots=True)
class Open:
    """What the open Kafka transaction holds."""

    records: int = 0
    bytes: int = 0
    since: float = 0.0
    largest_bytes: int = 0
    largest_topic: str = ""
    topics: Counter[str] = field(default_factory=Counter)
    topic_bytes: Counter[str] = field(default_factory=Counter)
    newest_ms: dict[str, int] = field(default_factory=dict)
    """By topic, when its last change was committed in the source."""
    moments_ms: Counter[int] = field(default_factory=Counter)
    """How many changes were committed in the source at each moment."""

    def ready(self, part: Ready) -> None:
        """What a source wrote itself: all of one transaction, or rows that it loaded. A tombstone is no change."""
        self.records += len(part.records)
        self.bytes += part.bytes
        mean = part.bytes / max(1, len(part.records))
        for topic, count in part.counts.items():
            self.topics[topic] += count
            self.topic_bytes[topic] += round(mean * count)
            if part.ts_ms:
                self.newest_ms[topic] = part.ts_ms
        if part.ts_ms:
            self.moments_ms[part.ts_ms] += len(part.records) - [record[VALUE] for record in part.records].count(None)

    def encoded(self, records: Sequence[OutRecord], changes: Sequence[Change]) -> None:
        self.records += len(records)
        for topic, key, value, _, _ in records:
            size = (len(key) if key else 0) + (len(value) if value else 0)
            self.bytes += size
            self.topics[topic] += 1
            self.topic_bytes[topic] += size
        found = (change.source.get("ts_ms") for change in changes if change.op in STREAMED)
        moments_ms = Counter[int](ts_ms for ts_ms in found if ts_ms)
        if moments_ms:
            self.moments_ms.update(moments_ms)
            self.newest_ms.update(dict.fromkeys({record.topic for record in records}, max(moments_ms)))


class TableCounts:
    """By table, within the bounds of `TableNames`."""

    def __init__(self, tables_max: int = TABLES_MAX, clock: Callable[[], float] = time.monotonic) -> None:
        self._names = TableNames(tables_max)
        self._clock = clock
        self._decayed_at = clock()
        self._shares: dict[str, float] = {}
        self.records: Counter[str] = Counter()
        self.lag_s: dict[str, float] = {}

    def add(self, prefix: str, held: Open, now_s: float, ran_dry: bool = False) -> None:
        """What was committed to Kafka. Whatever else waits of a table came after the newest of it: a source is read in
        the order of its commits. Once it has run dry, nothing else waits."""
        kept = 0.5 ** ((self._clock() - self._decayed_at) / SHARES_S)
        self._decayed_at = self._clock()
        self._shares = {name: size * kept for name, size in self._shares.items()}
        late: dict[str, float] = {}
        for topic, count in held.topics.items():
            name = self._names.of(topic, prefix)
            self.records[name] += count
            self._shares[name] = self._shares.get(name, 0.0) + held.topic_bytes[topic]
            if topic in held.newest_ms:
                late[name] = max(late.get(name, 0.0), round(now_s - held.newest_ms[topic] / 1000, 3))
        newest_ms = max(held.newest_ms.values(), default=None)
        if ran_dry or newest_ms is not None:
            most = 0.0 if ran_dry or newest_ms is None else max(0.0, round(now_s - newest_ms / 1000, 3))
            self.lag_s = {name: min(lag_s, most) for name, lag_s in self.lag_s.items()}
        self.lag_s |= late

    def dry(self) -> None:
        """Nothing waits of any table."""
        self.lag_s = dict.fromkeys(self.lag_s, 0.0)

    def lag_bytes(self, behind: float) -> dict[str, int]:
        """What the source is behind, dealt out as the bytes of each table's records have been lately."""
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
    latency: Latency = field(default_factory=Latency)
    stage_s: dict[Stage, float] = field(default_factory=lambda: {"read": 0.0, "encode": 0.0, "produce": 0.0})
    flushes: Counter[Reason] = field(default_factory=Counter)
    tables: TableCounts = field(default_factory=TableCounts)
    batch_records: int = 0
    batch_bytes: int = 0

    def took(self, stage: Stage, since: float) -> float:
        """Adds the time since then; gives the time now."""
        now = time.perf_counter()
        self.stage_s[stage] += now - since
        return now

    def committed(self, held: Open, took_s: float, reason: Reason) -> None:
        self.records += held.records
        self.bytes += held.bytes
        self.commits += 1
        self.commit_s_total += took_s
        self.commit_s_max = max(self.commit_s_max, took_s)
        self.flushes[reason] += 1
        if held.records:
            self.batch_records, self.batch_bytes = held.records, held.bytes

    def late(self, held: Open, prefix: str, reason: Reason) -> None:
        """How old what was committed to Kafka is now that it can be read: each change counts, not only the newest."""
        now_s = time.time()
        self.latency.note_all(held.moments_ms, now_s)
        self.tables.add(prefix, held, now_s, reason == "idle")
        if reason == "watermark":
            self.tables.dry()

    def numbers(self) -> dict[str, Any]:
        """Of those that the worker shows as series."""
        stages = {**self.stage_s, "commit": self.commit_s_total}
        return {
            "stage_s": {name: round(seconds, 3) for name, seconds in stages.items()},
            "flushes": dict(self.flushes),
            "batch_records": self.batch_records,
            "batch_bytes": self.batch_bytes,
            "table_records": dict(self.tables.records),
            "table_lag_s": dict(self.tables.lag_s),
        }
