"""Reads /proc: parents, sessions, memory, processor time and environments of processes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable
from typing import Final, NamedTuple

from cdcworker.worker.linux.process_group import MARK

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class ProcessStat(NamedTuple):
    """One process. `start`, in ticks since boot, identifies it together with `pid`; `cpu_s` is its own time without
    that of its children."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    cpu_s: float
    start: int
    rss_bytes: int


def parse_stat(pid: int, text: bytes) -> ProcessStat:
    """Parses /proc/PID/stat. The command's name may hold blanks and brackets, so the fields are counted from its end."""
    field = text.rpartition(b") ")[2].split()
    return ProcessStat(
        pid=pid,
        state=field[0].decode(),
        parent=int(field[1]),
        group=int(field[2]),
        session=int(field[3]),
        cpu_s=(int(field[11]) + int(field[12])) / TICKS_PER_S,
        start=int(field[19]),
        rss_bytes=int(field[21]) * PAGE_BYTES,
    )


def read_stat(pid: int) -> ProcessStat | None:
    """Returns the process, None when there is none with this id."""
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
    """Returns the ids of all processes."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def children_of(pid: int) -> list[int]:
    """Returns the children of all threads of a process."""
    children: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                children += map(int, file.read().split())
    except FileNotFoundError:
        # A thread that has ended, or a kernel without the file.
        return [stat.pid for stat in map(read_stat, pids()) if stat is not None and stat.parent == pid]
    except OSError:
        pass
    return children


def descendants_of(roots: Iterable[int]) -> list[int]:
    """Returns these processes and all their descendants, parents first."""
    descendants: list[int] = []
    seen: set[int] = set()
    todo = list(roots)
    while todo:
        pid = todo.pop()
        if pid not in seen:
            seen.add(pid)
            descendants.append(pid)
            todo += children_of(pid)
    return descendants


def mark_of(pid: int) -> str:
    """Returns the task's mark in the environment of a process; empty when there is none or it cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return ""
    name = f"{MARK}=".encode()
    return next((item[len(name) :].decode(errors="replace") for item in variables if item.startswith(name)), "")


def kill(pid: int, start: int | None = None) -> int | None:
    """Sends SIGKILL to exactly this process and returns its open pidfd; None when it has ended or its id belongs to
    another process."""
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


def threads() -> int:
    """Returns the number of threads that the kernel counts: a library may have started some that Python does not know."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count()
