"""What a sink task reports to its worker: counts, lag, paused tables, and the offsets that are applied."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, Final

from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.api.table_batch import SinkBatch
from cdcworker.connectors.sink_engine.batch_source import Partition
from cdcworker.connectors.sink_engine.kafka.lag import SinkLag
from cdcworker.connectors.sink_engine.kafka.written_tables import WrittenTables
from cdcworker.connectors.sink_engine.metrics import SinkMetrics
from cdcworker.connectors.sink_engine.paused_tables import PausedTables
from cdcworker.connectors.sink_engine.pipeline import BuiltBatch
from cdcworker.connectors.telemetry.retry_status import RetryStatus

log = logging.getLogger(__name__)

REPORT_EVERY_S: Final = 1.0


class SinkReporter:
    """Collects what the threads of a task have done and reports it."""

    def __init__(
        self,
        context: TaskContext,
        metrics: SinkMetrics,
        lag: SinkLag,
        paused: PausedTables,
        retrying: RetryStatus,
        written_tables: WrittenTables | None,
    ) -> None:
        self._context = context
        self._metrics = metrics
        self._lag = lag
        self._paused = paused
        self._retrying = retrying
        self._written_tables = written_tables
        self._offsets: dict[Partition, int] = {}
        self._reported = 0.0

    @property
    def is_due(self) -> bool:
        """Returns whether the last report is old."""
        return time.monotonic() - self._reported > REPORT_EVERY_S

    def begin(self, offsets: Mapping[Partition, int]) -> None:
        """Takes the offsets of the ledger, from which the task goes on."""
        self._offsets = dict(offsets)

    def caught_up(self) -> None:
        """Notes that nothing waits to be applied."""
        self._metrics.lag_s = 0.0
        self._retrying.over()

    def applied(self, built: BuiltBatch, batch: SinkBatch, counts: Mapping[str, Any], apply_ms: int) -> None:
        """Notes and reports a batch that the target has taken; `batch` sums up what of it was applied."""
        metrics = self._metrics
        self._offsets.update({partition: end for partition, (_, end) in batch.offsets.items()})
        took_ms = {"read": built.read_ms, "build": built.build_ms, "apply": apply_ms}
        metrics.add(counts, batch, took_ms, built.records)
        self._lag.applied(batch)
        self._retrying.over()
        metrics.mark("applied")
        if metrics.batches == 1:
            log.info("first batch applied %s", " ".join(f"{name}_ms={ms}" for name, ms in metrics.start_ms.items()))
        self.report()

    def report(self) -> None:
        """Reports to the worker, and to Kafka which tables have been written."""
        self._reported = time.monotonic()
        if self._written_tables is not None:
            self._written_tables.tell(self._offsets)
        lag = self._lag.numbers(self._offsets)
        self._context.report(
            {
                **self._metrics.numbers(),
                **lag,
                "lag_s": self._lag_s(lag),
                **self._retrying.numbers(),
                **self._paused.numbers(),
                "offsets": {f"{topic}-{partition}": offset for (topic, partition), offset in self._offsets.items()},
            }
        )

    def _lag_s(self, lag: Mapping[str, Any]) -> float:
        """Returns how late the sink is. While it tries again nothing is applied that would tell: what waits grows older."""
        late: Mapping[str, float] = lag.get("topic_lag_s") or {}
        if not lag.get("lag_records") or not self._retrying.is_trying:
            return self._metrics.lag_s
        return max(self._metrics.lag_s, *late.values()) if late else self._metrics.lag_s
