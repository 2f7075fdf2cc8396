"""A batch's way through a task: it is read in one thread, built in another and applied in a third, in order, so that Spark,
this process and the target work at the same time."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdcworker.connectors.api import SinkBatch
from cdcworker.connectors.spark.handover import Handover

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES_MAX = 128 * 1024 * 1024
"""Past this the next batches are smaller; several copies of a batch are in memory at a time."""
COPIES = 3
"""Of such a batch: its records, what is built of them, and what was built of the batch before."""
AHEAD_BYTES_MAX = COPIES * BATCH_BYTES_MAX // (COPIES + 1)
"""Behind a batch up to this size the records of the next one are read before it is built: with batches of one size as much
memory as without, with a small one between two large ones a sixth more."""
STAGE_S_MAX = 600.0
"""For one stage of a batch, in a lake for one table of it: a statement may wait for somebody's lock on a table."""
READING, BUILDING, APPLYING = "the read of a batch", "the build of a batch", "the write of a batch"


@dataclass(slots=True)
class Raw:
    """The records of a batch. Who builds it takes them out, so that they go as soon as they are built."""

    records: pa.Table | None
    read_to: Mapping[tuple[str, int], int]
    rows: int
    size: int
    """In bytes."""
    read_ms: int

    def take(self) -> pa.Table:
        found, self.records = self.records, None
        return found


@dataclass(frozen=True, slots=True)
class Built:
    """What is ready for the target: what it was built from and how long that took."""

    batches: Iterable[SinkBatch]
    """In one step of the target, where they are several."""
    records: int
    read_ms: int
    build_ms: int


class Steps:
    """What the stages are at, told in the order in which they began: one that hangs comes first, and is alone in the end."""

    def __init__(self, beat: Callable[[str, float], None]) -> None:
        self._beat = beat
        self._stages: list[str] = []
        self._within = ""
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def one(self, stage: str) -> Iterator[None]:
        with self._lock:
            self._stages.append(stage)
            self._tell()
        try:
            yield
        finally:
            with self._lock:
                self._stages.remove(stage)
                self._within = "" if stage == APPLYING else self._within
                self._tell()

    def within(self, doing: str) -> None:
        """What the writer says that it is at, in place of the name of its stage."""
        with self._lock:
            if APPLYING in self._stages:
                self._within = doing
                self._tell()
            else:
                self._beat(doing, STAGE_S_MAX)

    def _tell(self) -> None:
        names = [self._within or stage if stage == APPLYING else stage for stage in self._stages]
        self._beat(", ".join(names) or "the end of a batch", STAGE_S_MAX if names else 0.0)


class Stages:
    """Up to three batches are under way. One that fails ends it: what comes later was built on its success."""

    def __init__(
        self, build: Callable[[Raw], Built | None], apply: Callable[[Built], None], beat: Callable[[str, float], None]
    ) -> None:
        self._build = build
        self._apply = apply
        self._steps = Steps(beat)
        self._building = Handover(self._build_one, "build")
        self._applying = Handover(self._apply_one, "apply")

    @property
    def within(self) -> Callable[[str], None]:
        """Takes what the writer is at."""
        return self._steps.within

    @property
    def busy(self) -> bool:
        return self._building.busy or self._applying.busy

    @property
    def error(self) -> BaseException | None:
        """Of the oldest batch that failed."""
        return self._applying.error or self._building.error

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until what was read is applied; False: it is not yet. Nothing is read meanwhile."""
        began = time.monotonic()
        if not self._building.wait(timeout_s):
            return False
        return self._applying.wait(None if timeout_s is None else max(0.0, began + timeout_s - time.monotonic()))

    def reset(self) -> None:
        """Begin anew, once nothing runs."""
        self._building.reset()
        self._applying.reset()

    def read(self, read: Callable[[], Raw]) -> None:
        """Read a batch and hand it on, once the one before is built. Of one that fails later `error` tells."""
        with self._steps.one(READING):
            raw = read()
        large = raw.size > AHEAD_BYTES_MAX
        self._building.give(raw)
        if large:
            self._building.wait()

    def _build_one(self, raw: Raw) -> None:
        with self._steps.one(BUILDING):
            built = self._build(raw)
        if built is not None:
            self._applying.give(built)

    def _apply_one(self, built: Built) -> None:
        with self._steps.one(APPLYING):
            self._apply(built)
