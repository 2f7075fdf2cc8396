"""What every benchmark shares: CPU and memory of process trees, waiting, the closing JSON line."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def tree(pid: int) -> list[int]:
    """`pid` and all that descend from it, now."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = stat(int(entry.name))
            if fields:
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        current = queue.pop()
        found.append(current)
        queue += children.get(current, [])
    return found


def stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command name; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return []


def cpu_s(pids: Sequence[int]) -> float:
    """User and system seconds of the processes, with those of their ended children."""
    return sum(sum(map(int, fields[11:15])) for pid in pids if (fields := stat(pid))) / TICKS_PER_S


def rss_mb(pids: Sequence[int]) -> float:
    return sum(int(fields[21]) * PAGE_BYTES for pid in pids if (fields := stat(pid))) / 1e6


def wait(what: str, condition: Callable[[], bool], timeout_s: float, poll_s: float = 0.02) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"gave up after {timeout_s:.0f} s: {what}")
        time.sleep(poll_s)


def median(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each figure over the rounds."""
    return {name: round(statistics.median(row[name] for row in rows), 3) for name in rows[0]}


def finish(figures: Mapping[str, float | int | str]) -> None:
    """The last line: one JSON object, figures by name, units in the names."""
    print(json.dumps(figures))
