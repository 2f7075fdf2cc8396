"""Tailing a compacted log for a fold; when the place in it is lost it is read again, while everything else goes on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from cdcworker.coordinator.api import Ends, Record, TailedLog
from cdcworker.schemas.errors import CdcError

log = logging.getLogger(__name__)

ENDS_S = 20.0
RETRY_S = 1.0
CHECK_EVERY_S = 300.0
"""How often it is made sure that nothing is missing: a reader that hears nothing cannot tell silence from deafness."""
AWAY_S_MAX = 12 * 3600.0
"""Half of the time for which Kafka keeps tombstones: a reader that was away longer may have missed deletions."""

Job = Callable[[], None]


class Tailed(NamedTuple):
    records: tuple[Record, ...]
    reset: bool = False
    """The whole log as it is now: what was folded before is void."""


def boot_clock_s() -> float:
    """A monotonic clock that also runs while the machine sleeps, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class LogTail:
    """Used by the herder's thread after the log was read to its end once; `post` brings answers of other threads."""

    def __init__(self, source: TailedLog, name: str, post: Callable[[Job], None]) -> None:
        self._log = source
        self._name = name
        self._post = post
        self._again = False
        self._kept: list[Record] = []
        self._ends: Ends | None = None
        self._turn = 0
        self._asked = False
        self._ask_at = time.monotonic() + CHECK_EVERY_S
        self._retry_at = 0.0
        self._complete_at = boot_clock_s()

    @property
    def whole(self) -> bool:
        """Not being read again: what was handed out is what the log holds."""
        return not self._again

    def poll(self) -> Tailed | None:
        """What is new, or the whole log once it has been read again. None: nothing yet."""
        try:
            records = self._log.poll(0)
            reached = self._ends is not None and self._log.reached(self._ends)
        except CdcError as exc:
            # The place in the log is lost: only a whole fold is safe.
            if time.monotonic() >= self._retry_at:
                log.error("log not read log=%s error=%s", self._name, exc)
                self._read_again("its place was lost")
            return None
        if reached:
            self._ends, self._complete_at = None, boot_clock_s()
        elif boot_clock_s() - self._complete_at > AWAY_S_MAX and not self._again:
            self._read_again("this worker was away for too long")
            return None
        self._ask_if_due()
        if not self._again:
            return Tailed(tuple(records)) if records else None
        self._kept += records
        if not reached:
            return None
        self._again = False
        kept, self._kept = self._kept, []
        return Tailed(tuple(kept), reset=True)

    def _read_again(self, why: str) -> None:
        log.warning("log is read again from its start log=%s reason=%s", self._name, why)
        self._again, self._kept, self._ends = True, [], None
        self._turn += 1
        self._asked, self._ask_at = False, 0.0
        self._retry_at = time.monotonic() + RETRY_S
        self._log.rewind()

    def _ask_if_due(self) -> None:
        """To have reached the true end is the only proof of having missed nothing."""
        if self._asked or self._ends is not None or time.monotonic() < self._ask_at:
            return
        self._asked = True
        threading.Thread(target=self._ask, args=(self._turn,), name=f"ends-{self._name}", daemon=True).start()

    def _ask(self, turn: int) -> None:
        """Runs on a thread of its own."""
        ends: Ends | None = None
        try:
            ends = self._log.ends(ENDS_S)
        except CdcError as exc:
            log.warning("end of the log not known log=%s error=%s", self._name, exc)
        self._post(lambda: self._told(turn, ends))

    def _told(self, turn: int, ends: Ends | None) -> None:
        if turn != self._turn:
            return
        self._asked, self._ends = False, ends
        self._ask_at = time.monotonic() + (RETRY_S if self._again else CHECK_EVERY_S)
