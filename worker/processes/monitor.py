"""Samples all task processes about once a second: their memory, their processor time, and whether they make progress."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from cdcworker.coordinator.model import JsonObject
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.linux.resource_usage import TaskUsage, UsageSampler
from cdcworker.worker.processes.child import TaskChild
from cdcworker.worker.protocol.task_limits import MB, hung_error, memory_error

log = logging.getLogger(__name__)

EVERY_S: Final = 1.0
STOPPED_STATES: Final = frozenset("Tt")


class LimitJudge(Protocol):
    def __call__(self, child: TaskChild, error: CdcError, *, show: bool) -> None:
        """Ends the task with this error; `show` asks it first for the stacks of its threads."""


class TaskMonitor:
    """Checks the limits of tasks on the launcher's thread. `report` gets the numbers measured of each task."""

    def __init__(
        self, end: LimitJudge, report: Callable[[TaskChild, JsonObject], None], sampler: UsageSampler | None = None
    ) -> None:
        self._end = end
        self._report = report
        self._sampler = sampler or UsageSampler()
        self._at: float | None = None

    def deadline(self) -> float:
        """Returns the monotonic time of the next sample."""
        return (self._at or 0.0) + EVERY_S

    def tick(self, children: Iterable[TaskChild], now: float) -> None:
        if self._at is None:
            self._at = now
        if now < self._at + EVERY_S:
            return
        elapsed, self._at = now - self._at, now
        alive = [child for child in children if child.pid]
        usages = self._sampler.sample([child.pid for child in alive], now)
        for child in alive:
            self._check(child, usages[child.pid], elapsed)

    def _check(self, child: TaskChild, usage: TaskUsage, elapsed: float) -> None:
        child.members = usage.members
        child.peak_bytes = max(child.peak_bytes, usage.rss_bytes)
        self._report(child, {"cpu_cores": round(usage.cpu_cores, 3), "rss_bytes": usage.rss_bytes})
        limit_mb = child.limits.memory_mb
        if child.error is not None:
            return
        if limit_mb and usage.rss_bytes > limit_mb * MB:
            self._end(child, memory_error(limit_mb, child.peak_bytes), show=False)
            return
        hang_detector = child.hang_detector
        hang_detector.add_elapsed(elapsed)
        # A task that is to stop has a limit of its own.
        if hang_detector.hangs and not child.stopping:
            stopped = usage.state in STOPPED_STATES
            error = hung_error(hang_detector.doing, hang_detector.stalled_s, hang_detector.limit_s, stopped=stopped)
            self._end(child, error, show=hang_detector.has_heartbeat and not stopped)
