"""Ends what tasks leave behind. The worker adopts orphans of its tasks, so that none of them is out of its sight."""

from __future__ import annotations

import contextlib
import os
import selectors
from collections.abc import Callable, Collection, Iterable
from typing import ClassVar

from cdcworker.worker import procstat
from cdcworker.worker.process import PR_SET_CHILD_SUBREAPER, is_subreaper, prctl


class Adoption:
    """While it is held by anybody in this process, orphans of descendants become children of this process."""

    _holders: ClassVar[int] = 0
    _before: ClassVar[bool] = False

    @classmethod
    def hold(cls) -> None:
        if cls._holders == 0:
            cls._before = is_subreaper()
            prctl(PR_SET_CHILD_SUBREAPER, 1)
        cls._holders += 1

    @classmethod
    def let_go(cls) -> None:
        cls._holders -= 1
        if cls._holders == 0 and not cls._before:
            prctl(PR_SET_CHILD_SUBREAPER, 0)


class Strays:
    """Kills and reaps orphans that belong to a task that has ended; others' children are never waited for."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._dying: dict[int, int] = {}

    def sweep(self, mark: str, session: int, spare: Collection[int], known: Iterable[tuple[int, int]] = ()) -> int:
        """End all children of this process that bear the mark, belong to the session or are among the known (pid and
        start), with their descendants. `spare` are children that are somebody else's for sure. Returns how many."""
        ended = 0
        starts = dict(known)
        for pid in procstat.children_of(os.getpid()):
            stat = None if pid in spare or pid in self._dying.values() else procstat.read_stat(pid)
            if stat is None or stat.parent != os.getpid():
                continue
            if stat.session == session or starts.get(pid) == stat.start or procstat.mark_of(pid) == mark:
                ended += self._end(pid, mark, session)
        return ended

    def _end(self, root: int, mark: str, session: int) -> int:
        """Descendants are re-parented to us when their parent dies, and swept then; this only hurries it up."""
        count = 0
        for pid in procstat.descendants_of([root]):
            descriptor = procstat.kill(pid)
            if descriptor is None:
                continue
            count += 1
            if pid != root:
                os.close(descriptor)
                continue
            self._dying[descriptor] = pid
            self._selector.register(descriptor, selectors.EVENT_READ, self._reaper(descriptor, mark, session))
        return count

    def _reaper(self, descriptor: int, mark: str, session: int) -> Callable[[int], None]:
        def reap(_mask: int) -> None:
            pid = self._dying.pop(descriptor)
            self._selector.unregister(descriptor)
            os.close(descriptor)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            # Its own children have become ours just now.
            self.sweep(mark, session, ())

        return reap

    @property
    def pending(self) -> bool:
        return bool(self._dying)
