"""What do the parts use? Samples of processes by role, of disk, topics and the retained log, as lines of a file."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tests.e2e.cluster import descendants, names_task

from .bank import run
from .faults import FORK_SERVER
from .growth import Allowed, Point, Verdict, judge
from .stack import SINKS, SOURCES, Stack

MB: Final = 1_000_000
FILE: Final = "samples.jsonl"
PAGE: Final = os.sysconf("SC_PAGE_SIZE")
TICKS: Final = os.sysconf("SC_CLK_TCK")
OF_PROCESSES: Final[Mapping[str, Allowed]] = {
    "RSS, MB": Allowed(0.25, 30),
    "file handles": Allowed(0.2, 10),
    "threads": Allowed(0.2, 5),
}
OF_DISK: Final[Mapping[str, Allowed]] = {
    "data topics, MB": Allowed(0.3, 100),
    "internal topics, MB": Allowed(0.5, 50),
    "PostgreSQL's rows, MB": Allowed(0.3, 100),
    "PostgreSQL's log, MB": Allowed(0.5, 150),
    "MariaDB's data, MB": Allowed(0.3, 300),
    "lake, MB": Allowed(0.3, 50),
    "WAL retained by the slot, MB": Allowed(0.5, 100),
}
"""Topics and MariaDB's log are bounded by size, and take a while until they have it."""


def of_process(pid: int) -> dict[str, float]:
    """Returns what a process uses, and its age. OSError when it is gone."""
    folder = Path(f"/proc/{pid}")
    told = (folder / "stat").read_text().rpartition(") ")[2].split()
    up = float(Path("/proc/uptime").read_text().split()[0])
    started = int(told[19]) / TICKS
    return {
        "RSS, MB": int((folder / "statm").read_text().split()[1]) * PAGE / MB,
        "file handles": len(os.listdir(folder / "fd")),
        "threads": int(told[17]),
        "age": up - started,
        "started": started,
    }


def roles(stack: Stack) -> Iterator[tuple[str, int]]:
    """Each process with its role."""
    for worker in list(stack.cluster.workers.values()):
        yield "worker", worker.pid
        for pid in descendants(worker.pid):
            if role := _role(pid):
                yield role, pid
    for name, server in (("Kafka", stack.kafka), ("MariaDB", stack.mariadb)):
        if server.alive():
            yield name, server.pid


def _role(pid: int) -> str:
    if any(names_task(pid, name, 0) for name in SOURCES):
        return "source task"
    if any(names_task(pid, name, 0) for name in SINKS):
        return "sink task"
    with contextlib.suppress(OSError):
        if FORK_SERVER in Path(f"/proc/{pid}/cmdline").read_text():
            return "fork server"
        if os.path.basename(os.readlink(f"/proc/{pid}/exe")) == "java":
            return "Spark JVM"
    return ""


def bytes_below(folder: Path) -> int:
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(path, name)).st_blocks * 512
    return total


def of_disk(stack: Stack) -> dict[str, float]:
    topics = {path: bytes_below(path) / MB for path in (stack.kafka.directory / "data").glob("*/")}
    data = sum(size for path, size in topics.items() if path.name.rpartition("-")[0] in stack.topics)
    found = {
        "data topics, MB": data,
        "internal topics, MB": sum(topics.values()) - data,
        "PostgreSQL's rows, MB": bytes_below(stack.postgres.data / "base") / MB,
        "PostgreSQL's log, MB": bytes_below(stack.postgres.data / "pg_wal") / MB,
        "MariaDB's data, MB": bytes_below(stack.mariadb.directory / "data") / MB,
        "lake, MB": bytes_below(stack.lake) / MB,
    }
    ask = "select pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) from pg_replication_slots"
    bank = stack.banks()["postgres"]
    with contextlib.suppress(bank.errors), contextlib.closing(bank.connect()) as connection:
        for (retained,) in run(connection, ask):
            found["WAL retained by the slot, MB"] = float(retained or 0) / MB
    return found


class Sampler:
    """Appends samples to a file of the soak's folder. `at` tells the seconds of the soak."""

    def __init__(self, stack: Stack, every_s: float) -> None:
        self._stack = stack
        self._every_s = every_s
        self._next = time.monotonic()

    def sample_if_due(self, at_s: float) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every_s
        processes = []
        for role, pid in roles(self._stack):
            with contextlib.suppress(OSError):
                processes.append({"role": role, "pid": pid, **of_process(pid)})
        line = {"at_s": round(at_s, 1), "processes": processes, "disk": of_disk(self._stack)}
        with (self._stack.folder / FILE).open("a") as file:
            file.write(json.dumps(line) + "\n")


def read(folder: Path) -> Iterator[dict[str, Any]]:
    """Returns all samples. A line that was cut off is none."""
    path = folder / FILE
    if path.exists():
        with path.open() as lines:
            for line in lines:
                with contextlib.suppress(json.JSONDecodeError):
                    yield json.loads(line)


def judged(samples: Iterable[Mapping[str, Any]]) -> dict[str, Verdict]:
    """Returns of each figure whether it grows: `role: figure`, or the figure of the disk."""
    series: dict[str, list[Point]] = defaultdict(list)
    for sample in samples:
        for one in sample["processes"]:
            process = f"{one['pid']} {one['started']}"
            for name in OF_PROCESSES:
                series[f"{one['role']}: {name}"].append(Point(sample["at_s"], one[name], process, one["age"]))
        for name, value in sample["disk"].items():
            series[name].append(Point(sample["at_s"], value))
    return {name: judge(points, _allowed(name)) for name, points in sorted(series.items())}


def _allowed(name: str) -> Allowed:
    return OF_DISK.get(name) or OF_PROCESSES[name.partition(": ")[2]]
