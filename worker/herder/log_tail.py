"""Tails a compacted log for a fold. When its position is lost, the log is read again from the start while the worker
goes on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from cdcworker.coordinator.api import Ends, LogRecord, TailedLog
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.threads import start_thread

log = logging.getLogger(__name__)

ENDS_S = 20.0
RETRY_S = 1.0
CHECK_EVERY_S = 300.0
"""Seconds between two checks that no record is missing: a consumer that gets no records cannot tell a quiet log from a
broken one."""
AWAY_S_MAX = 12 * 3600.0
"""Half of the time for which Kafka keeps tombstones. A reader that was away for longer may have missed deletions."""

Job = Callable[[], None]


class TailedRecords(NamedTuple):
    """Records that were read from the log."""

    records: tuple[LogRecord, ...]
    reset: bool = False
    """True if `records` are the whole log, so that the state folded before is void."""


def boot_clock_s() -> float:
    """Returns a monotonic clock in seconds that also runs while the machine is suspended, where the system has one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class LogTail:
    """Follows a log that has already been read to its end once. The herder's thread calls it; `post` brings results of
    other threads to that thread."""

    def __init__(self, source: TailedLog, name: str, post: Callable[[Job], None]) -> None:
        self._log = source
        self._name = name
        self._post = post
        self._is_reread = False
        self._reread: list[LogRecord] = []
        self._ends: Ends | None = None
        self._reading = 0
        self._ends_requested = False
        self._request_ends_at = time.monotonic() + CHECK_EVERY_S
        self._retry_at = 0.0
        self._complete_at = boot_clock_s()

    @property
    def is_complete(self) -> bool:
        """True if the records handed out so far are the whole log: False while the log is read again."""
        return not self._is_reread

    def poll(self) -> TailedRecords | None:
        """Returns new records, or the whole log once it has been read again; None while there is nothing."""
        try:
            records = self._log.poll(0)
            reached = self._ends is not None and self._log.reached(self._ends)
        except CdcError as exc:
            # The place in the log is lost: only a is_complete fold is safe.
            if time.monotonic() >= self._retry_at:
                log.error("log not read log=%s error=%s", self._name, exc)
                self._start_again("its place was lost")
            return None
        if reached:
            self._ends, self._complete_at = None, boot_clock_s()
        elif boot_clock_s() - self._complete_at > AWAY_S_MAX and not self._is_reread:
            self._start_again("this worker was away for too long")
            return None
        self._request_ends_if_due()
        if not self._is_reread:
            return TailedRecords(tuple(records)) if records else None
        self._reread += records
        if not reached:
            return None
        self._is_reread = False
        reread, self._reread = self._reread, []
        return TailedRecords(tuple(reread), reset=True)

    def _start_again(self, why: str) -> None:
        log.warning("log is read again from its start log=%s reason=%s", self._name, why)
        self._is_reread, self._reread, self._ends = True, [], None
        self._reading += 1
        self._ends_requested, self._request_ends_at = False, 0.0
        self._retry_at = time.monotonic() + RETRY_S
        self._log.rewind()

    def _request_ends_if_due(self) -> None:
        """Starts a look-up of the end offsets. Having reached the true end is the only proof that no record was missed."""
        if self._ends_requested or self._ends is not None or time.monotonic() < self._request_ends_at:
            return
        self._ends_requested = True
        start_thread(self._read_ends, self._reading, name=f"ends-{self._name}")

    def _read_ends(self, reading: int) -> None:
        """Looks up the end offsets, on a thread of its own."""
        ends: Ends | None = None
        try:
            ends = self._log.ends(ENDS_S)
        except CdcError as exc:
            log.warning("end of the log not known log=%s error=%s", self._name, exc)
        finally:
            self._post(lambda: self._ends_read(reading, ends))

    def _ends_read(self, reading: int, ends: Ends | None) -> None:
        if reading != self._reading:
            return
        self._ends_requested, self._ends = False, ends
        self._request_ends_at = time.monotonic() + (RETRY_S if self._is_reread else CHECK_EVERY_S)
