"""Waits in place for a target that is away for a while: restarted, failed over, out of connections, in a deadlock."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable

from cdcworker.connectors.sink_errors import TARGET_GONE, TARGET_LOCKED, TARGET_UNREACHABLE
from cdcworker.connectors.telemetry.retry_status import RetryStatus
from cdcworker.schemas.errors import CdcError

log = logging.getLogger(__name__)

AWAY = (TARGET_GONE, TARGET_LOCKED, TARGET_UNREACHABLE)

OUTAGE_S_MAX = 600.0
"""What lasts longer is reported as the task's failure."""
DELAY_S_MIN = 0.5
DELAY_S_MAX = 15.0


class TargetRetry:
    """Repeats a step that begins by reading the target's ledger: a server that went down may have lost batches that it
    had committed, so a batch alone is never sent again."""

    def __init__(
        self,
        stopping: Callable[[], bool],
        wait: Callable[[float], None],
        progress: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stopping = stopping
        self._wait = wait
        self._progress = progress
        """A number that grows with every batch that was applied: an outage after that is another one."""
        self._clock = clock
        self.retrying = RetryStatus()

    def run(self, step: Callable[[], None]) -> None:
        """Repeats a step until it returns, fails for another reason, or the outage lasts too long. A stop ends it between
        two attempts."""
        since, tries, seen = 0.0, 0, self._progress()
        while not self._stopping():
            try:
                step()
            except CdcError as exc:
                now = self._clock()
                if not tries or self._progress() != seen:
                    since, tries, seen = now, 0, self._progress()
                if exc.code not in AWAY or now - since >= OUTAGE_S_MAX or self._stopping():
                    raise
                delay = min(DELAY_S_MAX, DELAY_S_MIN * 2.0 ** min(tries, 16)) * (0.5 + random.random() / 2)  # noqa: S311  spreads retries, protects nothing
                tries += 1
                self.retrying.failed(exc)
                log.warning("warehouse is unavailable attempt=%d delay_s=%.1f error=%s", tries, delay, exc)
                self._wait(delay)
            else:
                return
