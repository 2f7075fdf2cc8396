"""Looks at all tasks about once a second: what they use, and whether they come along."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from cdcworker.coordinator.model import JsonObject
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.child import Child
from cdcworker.worker.limits import MB, hung_error, memory_error
from cdcworker.worker.usage import Sampler, Usage

log = logging.getLogger(__name__)

EVERY_S: Final = 1.0
STOPPED_STATES: Final = frozenset("Tt")


class Judge(Protocol):
    def __call__(self, child: Child, error: CdcError, *, show: bool) -> None:
        """End this task for that reason; `show`: it can say first where its threads stand."""


class Watch:
    """For the launcher's thread. `report` gets what was measured of a task."""

    def __init__(self, end: Judge, report: Callable[[Child, JsonObject], None], sampler: Sampler | None = None) -> None:
        self._end = end
        self._report = report
        self._sampler = sampler or Sampler()
        self._at: float | None = None

    def deadline(self) -> float:
        return (self._at or 0.0) + EVERY_S

    def tick(self, children: Iterable[Child], now: float) -> None:
        if self._at is None:
            self._at = now
        if now < self._at + EVERY_S:
            return
        elapsed, self._at = now - self._at, now
        alive = [child for child in children if child.pid]
        usages = self._sampler.sample([child.pid for child in alive], now)
        for child in alive:
            self._look(child, usages[child.pid], elapsed)

    def _look(self, child: Child, usage: Usage, elapsed: float) -> None:
        child.members = usage.members
        child.peak_bytes = max(child.peak_bytes, usage.rss_bytes)
        self._report(child, {"cpu_cores": round(usage.cpu_cores, 3), "rss_bytes": usage.rss_bytes})
        limit_mb = child.limits.memory_mb
        if child.error is not None:
            return
        if limit_mb and usage.rss_bytes > limit_mb * MB:
            self._end(child, memory_error(limit_mb, child.peak_bytes), show=False)
            return
        pulse = child.pulse
        pulse.passed(elapsed)
        # A task that is to stop has a limit of its own.
        if pulse.hangs and not child.stopping:
            stopped = usage.state in STOPPED_STATES
            error = hung_error(pulse.doing, pulse.still_s, pulse.limit_s, stopped=stopped)
            self._end(child, error, show=pulse.beats and not stopped)
