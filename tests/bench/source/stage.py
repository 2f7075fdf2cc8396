"""The running parts of a source benchmark, and one contender over the rows that stand in the log."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import httpx
from cdcworker.worker.devstack.kafka import EmbeddedKafka
from cdcworker.worker.devstack.ports import free_ports
from cdcworker.worker.devstack.process import Program

from ..measure import cpu_s, rss_mb, tree, wait
from .records import check_rows, check_topics, make_topics, stored
from .server import Server
from .values import check_values

TIMEOUT_S = 600.0
POLL_S = 0.02
S = TypeVar("S", bound=Server)


@dataclass(frozen=True)
class Runner:
    """What runs connectors: our worker, or another program with Kafka Connect's REST API."""

    rest: httpx.Client
    pid: int
    registry: httpx.Client
    """Where the schemas of its records are."""
    has_task_processes: bool = True
    """Whether its tasks are processes of their own, whose memory is told; else the whole program's is."""

    def start(self, name: str, config: dict[str, str]) -> None:
        answer = self.rest.put(f"/connectors/{name}/config", json=config)
        if answer.status_code not in (200, 201):
            sys.exit(f"{name}: {answer.status_code} {answer.text}")

    def ask(self, name: str, state: str) -> None:
        """Has it paused, stopped or resumed."""
        self.rest.put(f"/connectors/{name}/{state}").raise_for_status()

    def halt(self, name: str) -> None:
        """Stops it and waits until its tasks are gone; it keeps its position."""
        self.ask(name, "stop")
        wait(f"{name} is stopped", lambda: self._state(name) == ("STOPPED", 0), 60)

    def offsets(self, name: str) -> list[object]:
        found: list[object] = self.rest.get(f"/connectors/{name}/offsets").json().get("offsets", [])
        return found

    def remove(self, name: str) -> None:
        self.rest.delete(f"/connectors/{name}")
        wait(f"{name} is gone", lambda: self.rest.get(f"/connectors/{name}").status_code == 404, 60)

    def check(self, name: str) -> None:
        """Ends the benchmark where a task has failed."""
        tasks = self.rest.get(f"/connectors/{name}/status").json().get("tasks") or []
        if any(task["state"] == "FAILED" for task in tasks):
            sys.exit(f"{name} failed: {tasks}")

    def memory_mb(self, pids: Sequence[int]) -> float:
        shown = [[pid] for pid in pids if _is_task(pid)] if self.has_task_processes else [pids]
        return max(map(rss_mb, shown), default=0.0)

    def _state(self, name: str) -> tuple[str, int]:
        status = self.rest.get(f"/connectors/{name}/status").json()
        return status.get("connector", {}).get("state", ""), len(status.get("tasks", ()))


@dataclass
class Stage(Generic[S]):
    """The running parts; `rows` of the tables that are filled, `memory` of our tasks."""

    server: S
    kafka: EmbeddedKafka
    runner: Runner
    rows: dict[str, int] = field(default_factory=dict)
    memory: list[float] = field(default_factory=list)

    def stop(self, name: str) -> None:
        self.runner.remove(name)
        self.server.forget(name)


@dataclass(frozen=True)
class Contender:
    """A connector whose topics begin with its name. `begin` has it read what `measured` waits for."""

    name: str
    runner: Runner
    begin: Callable[[], None]


@dataclass(frozen=True)
class Work:
    """What a contender has to bring: so many events of these tables, and what then stands in each of their topics."""

    table: str
    rows: int
    heads: Callable[[], Iterator[tuple[str, int]]]
    tables: Sequence[str] = ()
    exact: bool = True
    ordered: bool = True
    versions: bool = False
    values: bool = False
    """Whether the rows stand in the table as the records have them, so that their values can be compared."""
    records: int = 0
    """Where there are more of them than events."""

    @property
    def names(self) -> Sequence[str]:
        return self.tables or (self.table,)


def inserted(table: str, rows: int, *, exact: bool = True) -> Work:
    return Work(table, rows, lambda: (("c", number) for number in range(1, rows + 1)), exact=exact, values=True)


def measured(stage: Stage[S], work: Work, contender: Contender) -> dict[str, float]:
    """One connector over rows that stand there: events per second by the broker's clock, CPU per event, and the most memory, from
    the first record that is seen on; of one transaction, which is seen at once, from the connector's start on."""
    name, runner = contender.name, contender.runner
    topics = [stage.server.topic(name, table) for table in work.names]
    if len(topics) > 1:
        make_topics(stage.kafka.bootstrap, topics)
    begun = cpu_s(tree(runner.pid))
    contender.begin()
    samples: list[tuple[int, float]] = []
    memory = 0.0
    deadline = time.monotonic() + TIMEOUT_S
    records = work.records or work.rows
    while not samples or samples[-1][0] < records:
        count = sum(stored(stage.kafka.bootstrap, topic) for topic in topics)
        pids = tree(runner.pid)
        if count:
            samples.append((count, cpu_s(pids)))
            memory = max(memory, runner.memory_mb(pids))
        else:
            runner.check(name)
        if time.monotonic() > deadline:
            runner.check(name)
            sys.exit(f"{name}: {samples[-1:]} of {records}")
        time.sleep(POLL_S * len(topics))
    (n0, cpu0), (n1, cpu1) = samples[0] if samples[0][0] < records else (0, begun), samples[-1]
    seconds = _checked(stage, work, contender, topics)
    runner.remove(name)
    stage.server.forget(name)
    per_event = (cpu1 - cpu0) / max(n1 - n0, 1) * records / work.rows
    return {"events_per_s": work.rows / seconds, "cpu_us_per_event": per_event * 1e6, "rss_mb": memory}


def _checked(stage: Stage[S], work: Work, contender: Contender, topics: Sequence[str]) -> float:
    """The seconds between the first and the last record; ends the benchmark where one is missing, other or there again."""
    bootstrap = stage.kafka.bootstrap
    if not work.ordered:
        return check_rows(bootstrap, topics[0], work.rows)
    sample: list[bytes] | None = [] if work.values else None
    heads = {topic: work.heads() for topic in topics}
    seconds = check_topics(bootstrap, heads, exact=work.exact, versions=work.versions, sample=sample)
    if sample is not None:
        row_of = partial(stage.server.row, work.table)
        if not check_values(contender.runner.registry, row_of, work.table, sample):
            sys.exit(f"{contender.name}: no record was decoded")
    return seconds


def _is_task(pid: int) -> bool:
    try:
        return b"task" in Path(f"/proc/{pid}/cmdline").read_bytes() or b"task" in Path(f"/proc/{pid}/comm").read_bytes()
    except OSError:
        return False


def compiled(source: Path, folder: Path) -> Path:
    program = folder / source.stem
    subprocess.run(["gcc", "-O2", "-o", str(program), str(source)], check=True)
    return program


def input_ended() -> Callable[[], bool]:
    """Of a program that another one ends: whether its input was closed."""
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    return ended.is_set


def healthy(rest: httpx.Client) -> bool:
    try:
        return rest.get("/health").status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def running(root: Path, server: S) -> Iterator[Stage[S]]:
    """A broker and our worker in a folder, beside the server."""
    with EmbeddedKafka(root / "kafka") as kafka:
        (port,) = free_ports(1)
        properties = root / "worker.properties"
        properties.write_text(
            f"bootstrap.servers={kafka.bootstrap}\ngroup.id=bench\nlisteners=http://127.0.0.1:{port}\n"
            f"state.dir={root / 'state'}\n"
        )
        argv = [str(Path(sys.executable).parent / "cdcworker"), "start", "--config", str(properties)]
        worker = Program("worker", argv, root / "worker.log")
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as rest:
                wait("the worker is ready", lambda: healthy(rest), 120, 0.1)
                yield Stage(server, kafka, Runner(rest, worker.pid, rest))
        finally:
            worker.stop(timeout_s=25)
