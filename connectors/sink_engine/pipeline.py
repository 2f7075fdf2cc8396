"""A batch's way through a task: it is read in one thread, built in another and applied in a third, in order, so that the
source, this process and the target work at the same time. Builders are in `batch_builders`, the applier in `batch_applier`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from cdcworker.connectors.api.table_batch import SinkBatch
from cdcworker.connectors.sink_engine.batch_source import BATCH_BYTES_MAX, BatchLimit, BatchSource, ReadBatch
from cdcworker.connectors.sink_engine.kafka.lag import SinkLag
from cdcworker.connectors.sink_engine.stage_progress import APPLYING, BUILDING, StageProgress
from cdcworker.connectors.sink_engine.stage_thread import StageThread
from cdcworker.schemas.threads import SupervisedThread

COPIES: Final = 3
"""Of a batch in memory: its records, what is built of them, and what was built of the batch before."""
READ_AHEAD_BYTES_MAX: Final = COPIES * BATCH_BYTES_MAX // (COPIES + 1)
"""After a batch up to this size the records of the next one are read before it is built: with batches of one size that takes as
much memory as without, with a small one between two large ones a sixth more."""
NEXT_S: Final = 0.1
"""How long the source is waited for at a time."""


@dataclass(frozen=True, slots=True)
class BuiltBatch:
    """A batch that is ready for the target, with the number of its records and how long its stages took."""

    batches: Iterable[SinkBatch]
    """To be applied in one step of the target, where they are several."""
    records: int
    read_ms: int
    build_ms: int


class BatchBuilder(Protocol):
    """Turns records into batches of tables."""

    def build(self, batch: ReadBatch) -> BuiltBatch | None:
        """Returns what is to be applied; None: nothing yet."""


class BatchApplier(Protocol):
    """Brings built batches into the target."""

    def apply(self, built: BuiltBatch) -> None:
        """Applies it, or raises why that is not possible."""


class Pipeline:
    """Reads, builds and applies up to three batches at a time. One that fails ends it: what comes later was built on its
    success."""

    def __init__(
        self,
        source: BatchSource,
        builder: BatchBuilder,
        applier: BatchApplier,
        progress: StageProgress,
        lag: SinkLag,
        limit: BatchLimit,
    ) -> None:
        self._source = source
        self._builder = builder
        self._applier = applier
        self._progress = progress
        self._lag = lag
        self._limit = limit
        self._halting = False
        self._read_error: BaseException | None = None
        self._reading: threading.Thread | None = None
        self._building = StageThread(self._build, "build")
        self._applying = StageThread(self._apply, "apply")

    def start(self) -> None:
        """Begins to read an open source, once nothing runs any more."""
        self._halting, self._read_error = False, None
        self._building.reset()
        self._applying.reset()
        self._reading = SupervisedThread(self._read_all, name="read")
        self._reading.start()

    @property
    def busy(self) -> bool:
        """Returns whether any batch is under way."""
        return self._progress.busy or self._building.busy or self._applying.busy

    @property
    def error(self) -> BaseException | None:
        """Why the oldest batch that failed has failed, or why no batch comes any more."""
        return self._applying.error or self._building.error or self._read_error

    def halt(self) -> None:
        """Begins no further stage of any batch."""
        self._halting = True
        self._source.halt()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits, after `halt`, until all threads have ended; returns False when they have not in time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s

        def left_s() -> float | None:
            return None if deadline is None else max(0.0, deadline - time.monotonic())

        if self._reading is not None:
            self._reading.join(left_s())
        is_read = self._reading is None or not self._reading.is_alive()
        return is_read and self._building.wait(left_s()) and self._applying.wait(left_s())

    def _read_all(self) -> None:
        try:
            while not self._halting:
                batch = self._source.next(NEXT_S)
                if batch is not None and not self._take(batch):
                    return
        except BaseException as exc:  # noqa: BLE001 - whoever supervises the pipeline raises it
            if not self._halting:
                self._read_error = exc

    def _take(self, batch: ReadBatch) -> bool:
        """Gives a batch to be built, once the one before is built; False: that one has failed."""
        self._lag.read(batch.records, batch.read_to)
        self._limit.bound(batch.rows, batch.size)
        is_large = batch.size > READ_AHEAD_BYTES_MAX
        is_taken = self._building.give(batch)
        if is_large:
            self._building.wait()
        return is_taken

    def _build(self, batch: ReadBatch) -> None:
        if self._halting:
            return
        with self._progress.one(BUILDING):
            built = self._builder.build(batch)
        if built is not None:
            self._applying.give(built)

    def _apply(self, built: BuiltBatch) -> None:
        if self._halting:
            return
        with self._progress.one(APPLYING):
            self._applier.apply(built)
