"""Ends the processes that tasks leave behind. The worker is their subreaper, so that orphans become its children."""

from __future__ import annotations

import contextlib
import os
import selectors
from collections.abc import Callable, Collection, Iterable
from typing import ClassVar

from cdcworker.worker.linux import procfs
from cdcworker.worker.linux.process_group import PR_SET_CHILD_SUBREAPER, is_subreaper, prctl


class Subreaper:
    """Makes this process the subreaper of its descendants while at least one caller has acquired it."""

    _holders: ClassVar[int] = 0
    _before: ClassVar[bool] = False

    @classmethod
    def acquire(cls) -> None:
        if cls._holders == 0:
            cls._before = is_subreaper()
            prctl(PR_SET_CHILD_SUBREAPER, 1)
        cls._holders += 1

    @classmethod
    def release(cls) -> None:
        cls._holders -= 1
        if cls._holders == 0 and not cls._before:
            prctl(PR_SET_CHILD_SUBREAPER, 0)


class OrphanReaper:
    """Kills and reaps the orphans of tasks that have ended; children of others are never waited for."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._killed: dict[int, int] = {}

    def sweep(self, mark: str, session: int, spare: Collection[int], known: Iterable[tuple[int, int]] = ()) -> int:
        """Kills all children of this process that carry the mark, belong to the session or are `known`, with their
        descendants.

        `known` holds pairs of pid and start time. `spare` holds children that certainly belong to others. Returns how
        many processes were killed.
        """
        ended = 0
        starts = dict(known)
        for pid in procfs.children_of(os.getpid()):
            stat = None if pid in spare or pid in self._killed.values() else procfs.read_stat(pid)
            if stat is None or stat.parent != os.getpid():
                continue
            if stat.session == session or starts.get(pid) == stat.start or procfs.mark_of(pid) == mark:
                ended += self._kill_tree(pid, mark, session)
        return ended

    def _kill_tree(self, root: int, mark: str, session: int) -> int:
        """Kills a process with its descendants. Those become children of this process when their parent ends and are
        swept then too."""
        count = 0
        for pid in procfs.descendants_of([root]):
            descriptor = procfs.kill(pid)
            if descriptor is None:
                continue
            count += 1
            if pid != root:
                os.close(descriptor)
                continue
            self._killed[descriptor] = pid
            self._selector.register(descriptor, selectors.EVENT_READ, self._reaper(descriptor, mark, session))
        return count

    def _reaper(self, descriptor: int, mark: str, session: int) -> Callable[[int], None]:
        def reap(_mask: int) -> None:
            pid = self._killed.pop(descriptor)
            self._selector.unregister(descriptor)
            os.close(descriptor)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            # Its own children have become ours just now.
            self.sweep(mark, session, ())

        return reap

    @property
    def is_pending(self) -> bool:
        """True if killed processes still have to be reaped."""
        return bool(self._killed)
