"""What /proc says of processes: whose they are, what memory and processor time they use."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from typing import Final, NamedTuple

from cdcworker.worker.process import MARK

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class Stat(NamedTuple):
    """One process. `start` in ticks since boot makes a process of a pair with its id; `cpu_s` is its own, without
    that of its children."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    cpu_s: float
    start: int
    rss_bytes: int


def parse_stat(pid: int, text: bytes) -> Stat:
    """The command's name may hold blanks and brackets, so the fields are counted from its end."""
    field = text.rpartition(b") ")[2].split()
    return Stat(
        pid=pid,
        state=field[0].decode(),
        parent=int(field[1]),
        group=int(field[2]),
        session=int(field[3]),
        cpu_s=(int(field[11]) + int(field[12])) / TICKS_PER_S,
        start=int(field[19]),
        rss_bytes=int(field[21]) * PAGE_BYTES,
    )


def read_stat(pid: int) -> Stat | None:
    """None when there is no such process."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        return parse_stat(pid, os.read(descriptor, 4096))
    except (OSError, IndexError, ValueError):
        return None
    finally:
        os.close(descriptor)


def pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def children_of(pid: int) -> list[int]:
    """Children of all threads of a process."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except FileNotFoundError:
        # A thread that has ended, or a kernel without the file.
        return [stat.pid for stat in map(read_stat, pids()) if stat is not None and stat.parent == pid]
    except OSError:
        pass
    return found


def descendants_of(roots: Iterable[int]) -> list[int]:
    """These processes and all below them, parents first."""
    found: list[int] = []
    seen: set[int] = set()
    todo = list(roots)
    while todo:
        pid = todo.pop()
        if pid not in seen:
            seen.add(pid)
            found.append(pid)
            todo += children_of(pid)
    return found


def mark_of(pid: int) -> str:
    """The task's mark in the environment; empty when there is none or it cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return ""
    name = f"{MARK}=".encode()
    return next((item[len(name) :].decode(errors="replace") for item in variables if item.startswith(name)), "")


def kill(pid: int, start: int | None = None) -> int | None:
    """SIGKILL for exactly this process, which may have ended and left its id to another. Returns its pidfd, open."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    stat = read_stat(pid)
    if stat is None or (start is not None and stat.start != start):
        os.close(descriptor)
        return None
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
