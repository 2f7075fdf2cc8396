"""Brings built batches into a warehouse. `PausedTables` calls the writer: it leaves paused tables out, and pauses those that fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cdcworker.connectors.api.table_batch import SinkBatch
from cdcworker.connectors.api.table_writer import TableWriter
from cdcworker.connectors.sink_engine.paused_tables import PausedTables
from cdcworker.connectors.sink_engine.pipeline import BuiltBatch
from cdcworker.connectors.sink_engine.reporter import SinkReporter
from cdcworker.connectors.transactions.whole_transactions import WholeBatches

Write = Callable[[Iterable[SinkBatch]], Mapping[str, Any]]
"""Applies batches in one step of the target and returns its counts, as `TableWriter.apply` does."""


def write_single(writer: TableWriter) -> Write:
    """Returns what applies the only batch of several with the writer."""
    return lambda batches: writer.apply(next(iter(batches)))


class WarehouseApplier:
    """Applies one built batch after the other and notes what became of it."""

    def __init__(self, write: Write, paused: PausedTables, reporter: SinkReporter) -> None:
        self._write = write
        self._paused = paused
        self._reporter = reporter

    def apply(self, built: BuiltBatch) -> None:
        """Applies a batch. CdcError when that is not possible for another reason than a single table's."""
        began = time.monotonic()
        batch, counts = self._paused.apply_all(self._write, built.batches)
        if isinstance(built.batches, WholeBatches):
            built.batches.drop()
        if counts:
            self._reporter.applied(built, batch, counts, round((time.monotonic() - began) * 1000))
