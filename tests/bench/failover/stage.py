"""The cluster that the failover benchmark kills: embedded servers, workers as processes, sources with a steady writer."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psycopg
from cdcworker.connectors.registry.names import plugins
from cdcworker.coordinator.kafka.internal_topics import TopicNames, ensure_topics, internal_topics
from cdcworker.worker.devstack.kafka import EmbeddedKafka
from cdcworker.worker.devstack.ports import free_ports
from cdcworker.worker.devstack.postgres import EmbeddedPostgres
from cdcworker.worker.devstack.process import Program
from confluent_kafka.admin import AdminClient

from tests import plain_http

from ..measure import wait

GROUP = "failover"
WRITE_EVERY_S = 0.1
OFFSETS_PARTITIONS = 25
STANDBY = re.compile(r"standby ready number=(\d+)|worker ready|standby=\d+$|standby ended", re.MULTILINE)
"""A number: there is one now; without it there is none."""
STARTED = re.compile(r"task started task=(\S+)")
PROBE = "probe"
"""A stopped connector whose config is written to find out whether anybody leads."""
SINK = "warehouse"


class Held(NamedTuple):
    """Who runs a task, and how often its worker has started it."""

    worker: str
    epoch: int
    starts: int


@dataclass
class Worker:
    id: str
    port: int
    properties: Path
    log: Path
    process: Program
    read: int = 0
    started: Counter[str] = field(default_factory=Counter)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    standby: bool = False
    """One is ready, as its log tells."""

    def starts(self) -> Counter[str]:
        """How often this worker has started each task, over all of its lives, as its log tells."""
        lines = self.new_log()
        self.started.update(STARTED.findall(lines))
        for number in STANDBY.findall(lines):
            self.standby = bool(number)
        return self.started

    def new_log(self) -> str:
        """Whole lines that were logged since the last call."""
        with self.log.open("rb") as file:
            file.seek(self.read)
            lines, found, _ = file.read().rpartition(b"\n")
        self.read += len(lines) + len(found)
        return lines.decode(errors="replace")


class Writer(threading.Thread):
    """One row into every table, ten times a second; remembers when each row was begun."""

    def __init__(self, dsn: str, tables: Sequence[str]) -> None:
        super().__init__(name="writer", daemon=True)
        self._dsn = dsn
        self._tables = tables
        self._begun: list[float] = []
        self._ending = threading.Event()

    def run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._ending.wait(WRITE_EVERY_S):
                self._begun.append(time.monotonic())
                row = len(self._begun)
                for table in self._tables:
                    connection.execute(f"insert into {table} values ({row}, clock_timestamp())")

    def first_row_after(self, at: float) -> int:
        """The id of the first row that was begun after `at`; the same in every table."""
        return bisect_right(self._begun, at) + 1

    def stop(self) -> None:
        self._ending.set()
        self.join(10)


@dataclass
class Stage:
    """Servers, workers and connectors. `workers` holds the living and the dead; `rest` asks the living."""

    root: Path
    session_s: float
    postgres: EmbeddedPostgres
    kafka: EmbeddedKafka
    group: str = GROUP
    workers: dict[str, Worker] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    """Connector → its data topic."""
    writer: Writer | None = None
    aged: dict[str, float] = field(default_factory=dict)
    """What ageing the internal topics took, and left."""

    @property
    def topics(self) -> TopicNames:
        return TopicNames.of_group(self.group)

    # --- workers ----------------------------------------------------------------------------------------------------

    def make_internal_topics(self) -> None:
        specs = internal_topics(self.topics, offsets_partitions=OFFSETS_PARTITIONS)
        ensure_topics({"bootstrap.servers": self.kafka.bootstrap}, specs, client_id="bench")

    def add_worker(self, **properties: str) -> Worker:
        worker_id = f"w{len(self.workers) + 1}"
        (port,) = free_ports(1)
        config = {
            "bootstrap.servers": self.kafka.bootstrap,
            "group.id": self.group,
            "worker.id": worker_id,
            "listeners": f"http://127.0.0.1:{port}",
            "session.timeout.ms": str(int(self.session_s * 1000)),
            "state.dir": str(self.root / f"state-{worker_id}"),
            "offset.storage.partitions": str(OFFSETS_PARTITIONS),
            **properties,
        }
        path = self.root / f"{worker_id}.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in config.items()))
        log = self.root / f"{worker_id}.log"
        self.workers[worker_id] = Worker(worker_id, port, path, log, self._launch(worker_id, path, log))
        return self.workers[worker_id]

    @staticmethod
    def _launch(worker_id: str, properties: Path, log: Path) -> Program:
        argv = [str(Path(sys.executable).parent / "cdcworker"), "start", "--config", str(properties)]
        return Program(worker_id, argv, log)

    def restart(self, worker: Worker) -> None:
        """The same worker id in a new process."""
        assert not worker.process.alive()
        worker.process = self._launch(worker.id, worker.properties, worker.log)

    def kill(self, worker: Worker) -> None:
        """SIGKILL of the worker alone: its tasks have to notice by themselves."""
        os.kill(worker.process.pid, signal.SIGKILL)

    def living(self) -> list[Worker]:
        return [worker for worker in self.workers.values() if worker.process.alive()]

    def standbys(self) -> bool:
        """Whether each worker has a process that waits for a sink task."""
        for worker in self.living():
            worker.starts()
        return all(worker.standby for worker in self.living())

    def healthy(self, worker: Worker) -> bool:
        if not worker.process.alive():
            sys.exit(f"{worker.id} ended:\n{worker.process.failure('ended').message}")
        try:
            return plain_http.get(worker.url + "/health", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    # --- REST -------------------------------------------------------------------------------------------------------

    def rest(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """The first living worker that answers; 409 while a leader is missing is tried again."""
        deadline = time.monotonic() + 60
        while True:
            for worker in self.living():
                try:
                    answer = plain_http.request(method, worker.url + path, json=body, timeout=30)
                except httpx.TransportError:
                    continue
                if answer.status_code != 409:
                    return answer
            if time.monotonic() > deadline:
                sys.exit(f"{method} {path}: no worker answers")
            time.sleep(0.1)

    def put(self, name: str, config: Mapping[str, str], *, checked: bool = True) -> None:
        """`checked` False leaves out the live checks, which start a process each."""
        query = "" if checked else "?validate=false"
        answer = self.rest("PUT", f"/connectors/{name}/config{query}", dict(config))
        if answer.status_code not in (200, 201):
            sys.exit(f"{name}: {answer.status_code} {answer.text}")

    def picture(self) -> dict[str, Any]:
        found: dict[str, Any] = self.rest("GET", "/v1/cluster").json()
        return found

    def leader(self, picture: Mapping[str, Any] | None = None) -> Worker | None:
        """The leader if it is alive."""
        found = ((picture or self.picture()).get("leader") or {}).get("id")
        worker = self.workers.get(found or "")
        return worker if worker is not None and worker.process.alive() else None

    def held(self, picture: Mapping[str, Any] | None = None) -> dict[str, Held]:
        """Who runs each task; a task that does not run, or whose owner is dead, is missing."""
        starts = {worker.id: worker.starts() for worker in self.living()}
        found = {}
        for task in (picture or self.picture())["tasks"]:
            name = f"{task['connector']}-{task['task']}"
            if task["state"] == "FAILED":
                sys.exit(f"{name} failed: {task['error']}")
            if task["state"] == "RUNNING" and task["worker"] in starts:
                found[name] = Held(task["worker"], task["epoch"], starts[task["worker"]][name])
        return found

    # --- connectors -------------------------------------------------------------------------------------------------

    def connection(self, prefix: str, dbname: str) -> dict[str, str]:
        info = psycopg.conninfo.conninfo_to_dict(self.postgres.dsn(dbname))
        names = {"hostname": "host", "port": "port", "user": "user", "password": "password", "dbname": "dbname"}
        return {f"{prefix}.{ours}": str(info[theirs]) for ours, theirs in names.items()}

    def postgres_config(self, number: int) -> dict[str, str]:
        name = f"pg{number}"
        return {
            "connector.class": "postgres",
            **self.connection("database", "shop"),
            "topic.prefix": name,
            "slot.name": name,
            "publication.name": name,
            "table.include.list": f"public.t{number}",
        }

    def add_sources(self, tables: int, generators: int) -> None:
        """PostgreSQL sources, a table and a slot each, with the writer; generators where that connector exists."""
        with psycopg.connect(self.postgres.dsn("shop"), autocommit=True) as connection:
            for number in range(tables):
                connection.execute(f"create table t{number} (id bigint primary key, at timestamptz not null)")
        self.put(PROBE, self.postgres_config(0) | {"topic.prefix": PROBE, "slot.name": PROBE})
        self.rest("PUT", f"/connectors/{PROBE}/stop")
        for number in range(tables):
            self.put(f"pg{number}", self.postgres_config(number))
            self.sources[f"pg{number}"] = f"pg{number}.public.t{number}"
        for number in range(generators if has_generator() else 0):
            name = f"gen{number}"
            self.put(name, generator_config(name))
            self.sources[name] = f"{name}.task0.rows"
        self.writer = Writer(self.postgres.dsn("shop"), [f"t{number}" for number in range(tables)])
        self.writer.start()

    def await_topics(self) -> None:
        """Until every source has made its data topic."""
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        wait("data topics", lambda: set(self.sources.values()) <= set(admin.list_topics(timeout=10).topics), 60, 0.2)

    def add_sink(self) -> None:
        topics = ",".join(topic for name, topic in self.sources.items() if name.startswith("pg"))
        self.put(
            SINK,
            {
                "connector.class": "spark",
                "topics": topics,
                "warehouse": "postgres",
                **self.connection("warehouse", "warehouse"),
            },
        )

    # --- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self.writer is not None:
            self.writer.stop()
        for worker in self.living():
            worker.process.send(signal.SIGTERM)
        for worker in self.workers.values():
            worker.process.stop(timeout_s=25)


def has_generator() -> bool:
    return any(plugin.name == "datagen" for plugin in plugins())


def generator_config(name: str, rows_per_s: int = 10) -> dict[str, str]:
    return {
        "connector.class": "datagen",
        "topic.prefix": name,
        "rows.per.second": str(rows_per_s),
    }


@contextlib.contextmanager
def stage(root: Path, session_s: float) -> Iterator[Stage]:
    """Servers with their topics and databases; workers are added by the caller, after whatever ages the topics."""
    root.chmod(0o711)
    postgres, kafka = EmbeddedPostgres(root / "postgres"), EmbeddedKafka(root / "kafka")
    with postgres, kafka:
        postgres.create_database("shop")
        postgres.create_database("warehouse")
        found = Stage(root, session_s, postgres, kafka)
        found.make_internal_topics()
        try:
            yield found
        finally:
            found.close()


def start_workers(found: Stage, count: int) -> None:
    for _ in range(count):
        found.add_worker()
    for worker in found.workers.values():
        wait(f"{worker.id} is ready", lambda worker=worker: found.healthy(worker), 120, 0.1)  # type: ignore[misc]
