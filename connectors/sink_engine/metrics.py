"""What a sink task reports of itself."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cdcworker.connectors.api.table_batch import SinkBatch
from cdcworker.connectors.arrow.commit_times import note
from cdcworker.connectors.sink_engine.maintenance_metrics import MaintenanceMetrics
from cdcworker.connectors.telemetry.latency import REPORTED, LatencyHistogram


@dataclass(slots=True)
class SinkMetrics:
    """What the task reports; `lag_s` is how old the newest applied change was when it was committed, and 0 once
    nothing waits."""

    rows: int = 0
    changes: int = 0
    batches: int = 0
    orphans: int = 0
    dead_letters: int = 0
    lag_s: float = 0.0
    session_start_s: float = 0.0
    began: float = field(default_factory=time.monotonic)
    start_ms: dict[str, int] = field(default_factory=dict)
    """When the steps of the start were done, up to the first batch, since the task began."""
    batch_ms: dict[str, int] = field(default_factory=dict)
    batch_records: int = 0
    """Records of the last batch, before those of one key become one row."""
    tables: dict[str, int] = field(default_factory=dict)
    flushes: Counter[str] = field(default_factory=Counter)
    """Batches by what cut them: `trigger` (all that waited), `records` (the limit), `bytes` (a limit made smaller)."""
    limits: tuple[int, int] = (1 << 62, 1 << 62)
    """The most records of a batch now, and as configured."""
    latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    maintenance: MaintenanceMetrics = field(default_factory=MaintenanceMetrics)

    def add(self, counts: Mapping[str, Any], batch: SinkBatch, batch_ms: dict[str, int], records: int) -> None:
        self.rows += counts["rows"]
        self.changes += counts["changes"]
        self.orphans += counts["orphans"]
        self.dead_letters += len(batch.dead)
        self.batches += 1
        self.flushes[self._cut(batch)] += 1
        self.batch_ms, self.batch_records = batch_ms, records
        for name, rows in counts["tables"].items():
            self.tables[name] = self.tables.get(name, 0) + rows
        now_s = time.time()
        note(self.latency, batch.moments, now_s)
        newest = max((ts for _, ts in batch.applied.values()), default=0)
        if newest:
            self.lag_s = max(0.0, round(now_s - newest / 1000, 3))

    def _cut(self, batch: SinkBatch) -> str:
        """Returns what cut the batch. Spark divides its limit of offsets among the partitions and rounds, hence the tolerance."""
        records_max, wanted_max = self.limits
        if sum(end - begin for begin, end in batch.offsets.values()) + len(batch.offsets) < records_max:
            return "trigger"
        return "records" if records_max >= wanted_max else "bytes"

    def mark(self, step: str) -> None:
        """Notes when a step of the start was done; only the first time counts."""
        self.start_ms.setdefault(step, round((time.monotonic() - self.began) * 1000))

    def numbers(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "changes": self.changes,
            "batches": self.batches,
            "orphans": self.orphans,
            "lag_s": self.lag_s,
            "session_start_s": self.session_start_s,
            "start_ms": dict(self.start_ms),
            "batch_ms": dict(self.batch_ms),
            "batch_records": self.batch_records,
            "tables": dict(self.tables),
            "dead_letters": self.dead_letters,
            "flushes": dict(self.flushes),
            REPORTED: self.latency.numbers(),
            **self.maintenance.numbers(),
        }
