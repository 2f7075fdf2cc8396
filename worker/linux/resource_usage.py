"""Measures memory and processor time of tasks with all processes that they have started, from /proc, about once a
second."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from cdcworker.worker.linux.procfs import ProcessStat, pids, read_stat

REFRESH_EVERY: Final = 30
"""Every so many samples all processes of the machine are read again: process ids are used again in the end."""


@dataclass(slots=True)
class TaskUsage:
    """The usage of one task. `members` maps the ids of its processes to their start times."""

    rss_bytes: int = 0
    cpu_cores: float = 0.0
    members: dict[int, int] = field(default_factory=dict)
    state: str = ""
    """The state of the task's own process as /proc names it; T is stopped."""


class UsageSampler:
    """Attributes each process to the task whose descendant it is or was, or whose session it is in.

    A process that belongs to no task stays so and is read only once: a sample costs one small file for each process of
    a task.
    """

    def __init__(
        self,
        read: Callable[[int], ProcessStat | None] = read_stat,
        listed: Callable[[], list[int]] = pids,
    ) -> None:
        self._read = read
        self._listed = listed
        self._owners: dict[tuple[int, int], int] = {}
        self._foreign: set[int] = set()
        self._cpu: dict[tuple[int, int], float] = {}
        self._sampled: set[int] = set()
        self._at: float | None = None
        self._samples = 0

    def sample(self, roots: Collection[int], now: float) -> dict[int, TaskUsage]:
        """Returns the usage of each task by the id of its process."""
        stats = self._read_all(set(roots))
        owners = self._assign(stats, set(roots))
        elapsed = now - self._at if self._at is not None else 0.0
        out = {root: TaskUsage() for root in roots}
        cpu: dict[tuple[int, int], float] = {}
        for stat, root in owners:
            usage, identity = out[root], (stat.pid, stat.start)
            usage.rss_bytes += stat.rss_bytes
            usage.members[stat.pid] = stat.start
            cpu[identity] = stat.cpu_s
            if elapsed > 0 and root in self._sampled:
                usage.cpu_cores += max(0.0, stat.cpu_s - self._cpu.get(identity, 0.0)) / elapsed
            if stat.pid == root:
                usage.state = stat.state
        self._cpu, self._at, self._sampled = cpu, now, set(roots)
        self._owners = {(stat.pid, stat.start): root for stat, root in owners}
        return out

    def _read_all(self, roots: set[int]) -> dict[int, ProcessStat]:
        listed = set(self._listed())
        self._samples += 1
        if self._samples % REFRESH_EVERY == 0:
            self._foreign.clear()
        self._foreign &= listed
        self._foreign -= roots
        return {pid: stat for pid in listed - self._foreign if (stat := self._read(pid)) is not None}

    def _assign(self, stats: dict[int, ProcessStat], roots: set[int]) -> list[tuple[ProcessStat, int]]:
        known: dict[int, int | None] = {root: root for root in roots}
        out = []
        for stat in stats.values():
            root = self._owner(stat, stats, known)
            if root is None:
                self._foreign.add(stat.pid)
            else:
                out.append((stat, root))
        return out

    def _owner(self, stat: ProcessStat, stats: dict[int, ProcessStat], known: dict[int, int | None]) -> int | None:
        """Follows the parents of a process up to one whose task is known; None when there is none."""
        line: list[int] = []
        root: int | None = None
        at: ProcessStat | None = stat
        while at is not None and at.pid not in line:
            line.append(at.pid)
            if at.pid in known:
                root = known[at.pid]
                break
            before = self._owners.get((at.pid, at.start))
            root = next(
                (owner for owner in (before, at.session) if owner is not None and known.get(owner) == owner), None
            )
            if root is not None:
                break
            at = stats.get(at.parent)
        known.update(dict.fromkeys(line, root))
        return root
