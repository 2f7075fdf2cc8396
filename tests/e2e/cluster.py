"""A real cluster under test: workers as processes, their tasks found in /proc, REST, and waiting with deadlines."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx
from cdcworker.worker.devstack.kafka import EmbeddedKafka
from cdcworker.worker.devstack.ports import free_ports
from cdcworker.worker.devstack.postgres import EmbeddedPostgres
from cdcworker.worker.devstack.process import Program
from cdcworker.worker.quickstart.roles import make_reader, make_writer

from tests import plain_http
from tests.waiting import pause

PASSWORD = "a password of no use anywhere else"
SESSION_S = 6.0
"""The broker's minimum: tests wait less."""
START_S = 60.0
"""How long a worker may take until it answers."""


def wait(what: str, condition: Callable[[], object], timeout_s: float = 60.0, poll_s: float = 0.1) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + timeout_s, f"not within {timeout_s:.0f} s: {what}"
        pause(began, poll_s)


def children(pid: int) -> dict[int, str]:
    """Direct children of `pid` with their command lines."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                if int((entry / "stat").read_text().rpartition(") ")[2].split()[1]) == pid:
                    found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
    return found


def descendants(pid: int) -> list[int]:
    below = list(children(pid))
    return below + [deeper for child in below for deeper in descendants(child)]


@dataclass
class Worker:
    id: str
    url: str
    process: Program

    @property
    def pid(self) -> int:
        return self.process.pid

    def tree(self) -> list[int]:
        return [self.pid, *descendants(self.pid)]


@dataclass(frozen=True)
class Names:
    """What a cluster is called by, and two databases that are there."""

    group: str
    source_db: str
    warehouse_db: str


class Cluster:
    """`start_worker` as often as wanted; `rest` asks any worker that is alive."""

    def __init__(
        self, kafka: EmbeddedKafka, postgres: EmbeddedPostgres, directory: Path, names: Names | None = None
    ) -> None:
        """Without `names` the cluster is new, and so are its databases."""
        self.start_s = START_S
        self.kafka = kafka
        self.postgres = postgres
        self.directory = directory
        self.workers: dict[str, Worker] = {}
        chosen = names or Names(f"e2e-{uuid.uuid4().hex[:8]}", postgres.create_database(), postgres.create_database())
        self.group, self.source_db, self.warehouse_db = chosen.group, chosen.source_db, chosen.warehouse_db

    def start_worker(self, *, name: str = "", env: Mapping[str, str] | None = None, **properties: str) -> Worker:
        """`env` may lead to another build of the program."""
        worker_id = name or f"w{len(list(self.directory.glob('*.properties')))}"
        (port,) = free_ports(1)
        config = {
            "bootstrap.servers": self.kafka.bootstrap,
            "group.id": self.group,
            "worker.id": worker_id,
            "listeners": f"http://127.0.0.1:{port}",
            "session.timeout.ms": str(int(SESSION_S * 1000)),
            "state.dir": str(self.directory / f"state-{worker_id}"),
            "offset.storage.partitions": "3",
            **{name.replace("_", "."): value for name, value in properties.items()},
        }
        path = self.directory / f"{worker_id}.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in config.items()))
        argv = [sys.executable, "-m", "cdcworker.worker.cli.main", "start", "--config", str(path)]
        child = Program(worker_id, argv, self.directory / f"{worker_id}.log", env=env)
        worker = Worker(worker_id, f"http://127.0.0.1:{port}", child)
        self.workers[worker_id] = worker
        wait(f"{worker_id} is ready", lambda: self.healthy(worker), self.start_s)
        return worker

    def healthy(self, worker: Worker) -> bool:
        assert worker.process.alive(), f"{worker.id} ended:\n{worker.process.failure('ended').message}"
        try:
            return plain_http.get(worker.url + "/health", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def rest(self, method: str, path: str, body: Any = None, worker: Worker | None = None) -> httpx.Response:
        """Ask one worker, or the first that answers; 409 while a leader is missing is tried again."""
        deadline = time.monotonic() + 60
        while True:
            for each in [worker] if worker else list(self.workers.values()):
                try:
                    answer = plain_http.request(method, each.url + path, json=body, timeout=30)
                except httpx.TransportError:
                    continue
                if answer.status_code != 409 or answer.headers.get("X-CDC-Reason") == "exists":
                    return answer
            assert time.monotonic() < deadline, f"{method} {path}: no worker answers"
            time.sleep(0.2)

    def cluster(self) -> dict[str, Any]:
        found: dict[str, Any] = self.rest("GET", "/v1/cluster").json()
        return found

    def leader(self) -> Worker:
        found: list[Worker] = []

        def known() -> bool:
            leader = self.cluster().get("leader") or ""
            leader_id = leader.get("worker_id", leader.get("id", "")) if isinstance(leader, dict) else leader
            found[:] = [w for w in self.workers.values() if w.id == leader_id and w.process.alive()]
            return bool(found)

        wait("a living leader", known)
        return found[0]

    def status(self, connector: str) -> dict[str, Any]:
        answer = self.rest("GET", f"/connectors/{connector}/status")
        return answer.json() if answer.status_code == 200 else {}

    def owner(self, connector: str, task: int = 0) -> Worker:
        found: list[Worker] = []

        def running() -> bool:
            tasks = {t["id"]: t for t in self.status(connector).get("tasks", [])}
            state = tasks.get(task, {})
            found[:] = [w for w in self.workers.values() if w.id == state.get("worker_id") and w.process.alive()]
            return state.get("state") == "RUNNING" and bool(found)

        wait(f"{connector}-{task} runs", running, 120)
        return found[0]

    def task_pid(self, connector: str, task: int = 0) -> int:
        """The process that runs a task, by the environment or command line that names it. After a fault the task may
        still be on its way to another owner."""
        found: list[int] = []

        def there() -> bool:
            owner = self.owner(connector, task)
            found[:] = [pid for pid in descendants(owner.pid) if names_task(pid, connector, task)]
            return bool(found)

        wait(f"a process of {connector}-{task}", there, 120)
        return found[0]

    def submit(self, name: str, config: dict[str, str]) -> None:
        """With a role that has what `cdcworker roles` gives and nothing besides."""
        answer = self.rest("PUT", f"/connectors/{name}/config", self.limited(config))
        assert answer.status_code in (200, 201), answer.text

    def connection(self, prefix: str, dbname: str) -> dict[str, str]:
        url = urlsplit(self.postgres.dsn(dbname))
        return {
            f"{prefix}.hostname": str(url.hostname),
            f"{prefix}.port": str(url.port),
            f"{prefix}.user": unquote(url.username or ""),
            f"{prefix}.password": unquote(url.password or ""),
            f"{prefix}.dbname": dbname,
        }

    def limited(self, config: dict[str, str]) -> dict[str, str]:
        if config["connector.class"] == "postgres":
            dbname, role = config["database.dbname"], f"reader_{config['database.dbname']}"
            tables = [tuple(name.split(".")) for name in config["table.include.list"].split(",")]
            make_reader(self.postgres.dsn(dbname), role, PASSWORD, tables, config["publication.name"])
            return {**config, "database.user": role, "database.password": PASSWORD}
        if config["connector.class"] == "spark":
            dbname, role = config["warehouse.dbname"], f"writer_{config['warehouse.dbname']}"
            make_writer(self.postgres.dsn(dbname), role, PASSWORD, ["public"])
            return {**config, "warehouse.user": role, "warehouse.password": PASSWORD}
        return config

    def stop(self) -> None:
        for worker in self.workers.values():
            if worker.process.alive():
                with contextlib.suppress(ProcessLookupError):
                    resume(worker.tree())
        for worker in self.workers.values():
            worker.process.stop(timeout_s=25)


def names_task(pid: int, connector: str, task: int) -> bool:
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return False
    return "cdcworker.worker.task.main" in arguments and f"{connector}-{task}" in arguments


def send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def resume(pids: list[int]) -> None:
    send(pids, signal.SIGCONT)


@contextlib.contextmanager
def paused(pids: list[int]) -> Iterator[None]:
    """SIGSTOP now, SIGCONT at the end."""
    send(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        resume(pids)
