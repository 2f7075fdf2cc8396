"""A task that tries again: since when, how often and why, as it reports it while its state stays RUNNING."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from cdcworker.schemas.errors import CdcError

REPORTED: Final = "retrying"
"""The key among a task's numbers. It is absent until this process has failed or succeeded once: until then what the process
before it reported still holds."""


class RetryStatus:
    """Failed tries in a row, of one process; over with the first success."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._known = False
        self._now: dict[str, Any] | None = None

    def failed(self, error: CdcError) -> None:
        """Counts one more failed try."""
        before = self._now or {"since_ms": round(self._clock() * 1000), "count": 0}
        self._now = {**before, "count": before["count"] + 1, "code": error.code}
        self._known = True

    @property
    def is_trying(self) -> bool:
        """Whether the last try has failed."""
        return self._now is not None

    def over(self) -> None:
        """Notes a success."""
        self._now, self._known = None, True

    def numbers(self) -> dict[str, Any]:
        return {REPORTED: self._now} if self._known else {}
