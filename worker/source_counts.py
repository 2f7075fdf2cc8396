"""What a source task counts: totals over its life, what the open Kafka transaction holds, and the same by table."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from cdcworker.connectors.latency import Latency

Reason = Literal["", "idle", "records", "bytes", "time", "large", "part", "stop", "watermark"]
"""Why a Kafka transaction was committed. `large`: before a transaction that goes on; `part`: of such a one; `watermark`:
only to say how far the source has been read. Empty: not yet."""
Stage = Literal["read", "encode", "produce", "commit"]
TABLES_MAX: Final = 100
NAME_CHARS_MAX: Final = 12_000
"""Of all names together: a report must stay small."""
OTHER: Final = "other"


@dataclass(slots=True)
class Open:
    """What the open Kafka transaction holds."""

    records: int = 0
    bytes: int = 0
    since: float = 0.0
    largest_bytes: int = 0
    largest_topic: str = ""
    topics: Counter[str] = field(default_factory=Counter)


class TableCounts:
    """The tables that are met first have numbers of their own for good, so that no counter ever goes back."""

    def __init__(self, tables_max: int = TABLES_MAX) -> None:
        self._tables_max = tables_max
        self._names: dict[str, str] = {}
        self._chars = 0
        self.records: Counter[str] = Counter()
        self.lag_s: dict[str, float] = {}

    def add(self, prefix: str, topics: Counter[str], lag_s: float | None) -> None:
        for topic, count in topics.items():
            name = self._names.get(topic) or self._named(prefix, topic)
            self.records[name] += count
            if lag_s is not None:
                self.lag_s[name] = round(max(0.0, lag_s), 3)

    def _named(self, prefix: str, topic: str) -> str:
        name = topic.removeprefix(f"{prefix}.")
        if len(self._names) >= self._tables_max or self._chars + len(name) > NAME_CHARS_MAX or name == OTHER:
            return OTHER
        self._chars += len(name)
        self._names[topic] = name
        return name


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

    def late(self, held: Open, source_ts_ms: int | None, prefix: str) -> None:
        """How old the source's newest commit is now that it can be read."""
        lag_s = None if source_ts_ms is None else time.time() - source_ts_ms / 1000
        if held.records and lag_s is not None:
            self.latency.note(lag_s)
        self.tables.add(prefix, held.topics, lag_s)

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
