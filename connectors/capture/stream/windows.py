"""When the chunks that were read beside the stream are taken, and when a table is read whole while the stream stands still."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.capture.snapshot.jobs import SnapshotJobs
from cdcworker.connectors.capture.snapshot.load_host import LoadHost
from cdcworker.connectors.capture.snapshot.watermark_snapshot import WatermarkSnapshot
from cdcworker.connectors.capture.stream import limits
from cdcworker.schemas.change import PollBatch


class StreamDecoder(Protocol):
    """What has been decoded and not been handed on yet."""

    out: list[Any]


class LoadingSession(Protocol):
    """An open task, as far as its rows are read beside the stream."""

    @property
    def snapshot(self) -> WatermarkSnapshot | None: ...

    @property
    def loads(self) -> LoadHost | None: ...

    @property
    def decoder(self) -> StreamDecoder: ...


S = TypeVar("S", bound=LoadingSession)


class Windows(Generic[S]):
    """The turns of one task's snapshots. `checks` does what is due now and then and returns when something may be due again;
    `passed` tells the snapshot that the stream stands at a boundary; `read` reads a table whole."""

    def __init__(
        self,
        context: TaskContext,
        jobs: SnapshotJobs,
        checks: Callable[[S], float],
        passed: Callable[[S], None],
        read: Callable[[S, WatermarkSnapshot], Iterator[PollBatch]],
    ) -> None:
        self._context = context
        self._jobs = jobs
        self._checks = checks
        self._passed = passed
        self._read = read
        self._at = 0.0
        self._whole: Iterator[PollBatch] | None = None

    def turn(self, session: S, *, is_between: bool) -> PollBatch | None:
        """Takes the chunks that were read, and has more read, between two transactions. Returns a batch of a table that is read
        whole, while one is."""
        snapshot = session.snapshot
        if snapshot is not None and snapshot.loader.keyless:
            self._context.beat("a read of the snapshot", limits.READ_S_MAX)
        if self._whole is None and snapshot is not None and is_between and self._is_due(snapshot):
            self._open(session, snapshot)
        if self._whole is None:
            return None
        try:
            return next(self._whole)
        except StopIteration:
            self._whole = None
            return PollBatch()

    def _is_due(self, snapshot: WatermarkSnapshot) -> bool:
        is_asked = self._context.jobs() is not self._jobs.seen
        return bool(snapshot.progress.loads) or time.monotonic() >= self._at or is_asked

    def _open(self, session: S, snapshot: WatermarkSnapshot) -> None:
        if session.loads:
            self._jobs.look(session.loads)
        self._at = self._checks(session)
        if snapshot.finished:
            snapshot.loader.take_results()
        else:
            self._passed(session)
        if snapshot.loader.keyless and not session.decoder.out:
            self._whole = self._read(session, snapshot)
