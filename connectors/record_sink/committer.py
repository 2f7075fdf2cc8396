"""Commits what the target has taken, on a thread of its own: records are read and written meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from cdcworker.connectors.record_sink.errors import COMMIT_FAILED
from cdcworker.connectors.record_sink.group_offsets import GroupOffsets, Letter, Partition
from cdcworker.connectors.record_sink.ownership import Ownership
from cdcworker.connectors.record_sink.progress import Progress
from cdcworker.schemas import failpoints
from cdcworker.schemas.errors import INTERNAL, CdcError
from cdcworker.schemas.threads import SupervisedThread

log = logging.getLogger(__name__)

LOOK_S: Final = 0.05
AGAIN_S: Final = 1.0
"""How long after a commit that has failed the next one is tried."""
ALL_AGAIN_S: Final = 3_600.0
"""How often the offsets of all partitions are committed again: a broker forgets what was committed long ago."""
END_S: Final = 45.0


class Committer:
    """`take_over` first, then `start`, in the end `finish`. An error that ends the task is the progress's."""

    def __init__(
        self, offsets: GroupOffsets, progress: Progress, ownership: Ownership, every_s: float,
        applied: Callable[[Mapping[str, int]], None],
    ) -> None:  # fmt: skip
        """`applied` is told of which time what is committed is, by topic."""
        self._offsets = offsets
        self._progress = progress
        self._ownership = ownership
        self._every_s = every_s
        self._tell = applied
        self._lock = threading.Lock()
        self._applied: dict[Partition, int] = {}
        self._doubtful: tuple[dict[Partition, int], list[Letter]] | None = None
        """What a commit held of which nobody knows whether it has happened. Just that is committed again: with more in it, its
        dead letters could be there twice."""
        self._at = self._all_at = 0.0
        self._ending = threading.Event()
        self._thread = SupervisedThread(self._run, name="commit")

    def take_over(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        """Returns where the partitions are to be read from. Raises CdcError."""
        began = time.monotonic()
        self._applied = dict(self._offsets.take_over(partitions))
        self._at = self._all_at = began
        self._ownership.proven(began)
        return dict(self._applied)

    def start(self) -> None:
        self._thread.start()

    def add(self, place: Partition, first: int) -> None:
        """Takes a partition that has come since, with the offset of its first record."""
        with self._lock:
            if place not in self._applied:
                self._applied[place] = first
                self._offsets.add([place])

    def applied(self) -> dict[Partition, int]:
        """Returns what is committed, or read from where nothing is."""
        with self._lock:
            return dict(self._applied)

    def finish(self) -> None:
        """Commits the rest. What cannot be committed comes again."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(END_S)
        if self._thread.is_alive():
            log.warning("the last commit of offsets takes too long, it is given up")
            return
        try:
            self._commit(time.monotonic())
        except CdcError as error:
            log.warning("offsets were not committed at the end error=%s", error)

    def close(self) -> None:
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(END_S)
        if not self._thread.is_alive():
            self._offsets.close()

    def _run(self) -> None:
        try:
            while not self._ending.wait(min(LOOK_S, self._every_s)):
                now = time.monotonic()
                is_urgent = self._progress.is_urgent or self._ownership.is_wanted
                if now >= self._at + (0.0 if is_urgent else self._every_s):
                    self._commit(now)
        except CdcError as error:
            self._progress.failed(error)
            # Nothing is to be written under a place that is lost.
            self._ownership.end()
        except Exception as error:  # noqa: BLE001 - the task ends by it, and the text may hold values
            self._progress.failed(CdcError(INTERNAL, f"offsets could not be committed ({type(error).__name__})"))

    def _commit(self, now: float) -> None:
        if self._doubtful is None or self._committed(*self._doubtful, now):
            offsets, letters = self._progress.take()
            if self._ownership.is_wanted or now >= self._all_at + ALL_AGAIN_S:
                offsets = {**self.applied(), **offsets}
                self._all_at = now
            self._at = now
            if offsets:
                self._committed(offsets, letters, now)

    def _committed(self, offsets: dict[Partition, int], letters: list[Letter], now: float) -> bool:
        """Returns whether it could be committed; otherwise it is again later."""
        if failpoints.active:
            failpoints.hit("record_sink.before_commit")
        try:
            gone = self._offsets.commit(offsets, letters)
        except CdcError as error:
            if error.code != COMMIT_FAILED:
                raise
            self._doubtful = offsets, letters
            self._progress.try_failed(error)
            self._at = now + AGAIN_S
            log.warning("offsets are committed again later error=%s", error)
            return False
        self._doubtful = None
        with self._lock:
            self._applied.update(offsets)
            for place in gone:
                self._applied.pop(place, None)
        self._ownership.proven(now)
        self._tell(self._progress.take_newest())
        return True
