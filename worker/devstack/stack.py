"""The whole embedded stack: PostgreSQL with the source and the warehouse, Kafka, and workers as real processes; further servers where
they are asked for."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from cdcworker.schemas.errors import CdcError
from cdcworker.worker.devstack.errors import START_FAILED
from cdcworker.worker.devstack.further_servers import SOURCE_DATABASE, STARTS, FurtherServer, Server
from cdcworker.worker.devstack.kafka import QUICK_COMPILER_ONLY, EmbeddedKafka
from cdcworker.worker.devstack.ports import HOST, free_ports
from cdcworker.worker.devstack.postgres import EmbeddedPostgres
from cdcworker.worker.devstack.process import Program, log_tail

log = logging.getLogger(__name__)

WAREHOUSE_DATABASE = "warehouse"
SOURCE_PASSWORD, WAREHOUSE_PASSWORD = "SHOP_PASSWORD", "WAREHOUSE_PASSWORD"
GROUP_ID = "cdcworker"
SESSION_TIMEOUT_MS = 6000
"""The broker's minimum, so that a takeover in the demo is as short as possible."""
WORKER_READY_TIMEOUT_S = 180.0
EXCERPT_LINES = 10
NOTABLE = re.compile(r"WARN|ERROR|CRITICAL|Traceback|Exception|error=")
DRAIN_TIMEOUT_S = 25.0


@dataclass(slots=True)
class WorkerProcess:
    """One `cdcworker start`."""

    id: str
    url: str
    child: Program

    def healthy(self) -> bool:
        """Returns whether `GET /health` answers 200."""
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=5) as answer:  # noqa: S310  an address of the embedded stack, on this machine
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False


@dataclass(slots=True)
class DevStack:
    """The whole stack: `start()`, then `start_worker()` for each worker; `stop()` ends everything in the right order."""

    directory: Path
    progress: Callable[[str], None] = field(default=lambda _: None)
    worker_settings: Mapping[str, str] = field(default_factory=dict)
    more: Sequence[str] = ()
    """Names of `STARTS`: servers that stand beside the others."""
    workers: list[WorkerProcess] = field(default_factory=list)
    timings_s: dict[str, float] = field(default_factory=dict)
    kafka: EmbeddedKafka = field(init=False)
    postgres: EmbeddedPostgres = field(init=False)
    further: dict[str, FurtherServer] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.kafka = EmbeddedKafka(self.directory / "kafka", jvm_options=QUICK_COMPILER_ONLY, progress=self.progress)
        self.postgres = EmbeddedPostgres(self.directory / "postgres")

    def start(self) -> None:
        """Starts the servers side by side and creates the databases. Called from the main thread (parent-death signal)."""
        began = time.monotonic()
        self.kafka.launch()
        self.postgres.start()
        self.postgres.create_database(SOURCE_DATABASE)
        self.postgres.create_database(WAREHOUSE_DATABASE)
        self.timings_s["postgres"] = time.monotonic() - began
        self.progress(f"PostgreSQL answers at 127.0.0.1:{self.postgres.port}")
        for name in self.more:
            self._start_further(name)
        self.kafka.await_ready()
        self.timings_s["kafka"] = time.monotonic() - began
        self.progress(f"Kafka answers at {self.kafka.bootstrap}")

    def _start_further(self, name: str) -> None:
        began = time.monotonic()
        found = STARTS[name](self.directory, self.progress)
        if found is not None:
            self.further[name] = found
            self.timings_s[name] = time.monotonic() - began

    def start_worker(self) -> WorkerProcess:
        """Launches one more worker without waiting for it."""
        name = f"worker-{len(self.workers) + 1}"
        (port,) = free_ports(1)
        folder = self.directory / name
        folder.mkdir()
        properties = folder / "worker.properties"
        settings = self._worker_properties(name, port, folder)
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
        argv = [sys.executable, "-m", "cdcworker.worker.cli.main", "start", "--config", str(properties)]
        # What tasks leave in the temporary folder when they are killed is removed with ours.
        temporary = self.directory / "t"
        temporary.mkdir(exist_ok=True)
        environment = {**worker_environment(self.secrets), "TMPDIR": str(temporary)}
        child = Program(name, argv, folder / f"{name}.log", env=environment)
        worker = WorkerProcess(name, f"http://{HOST}:{port}", child)
        self.workers.append(worker)
        return worker

    def _worker_properties(self, name: str, port: int, folder: Path) -> dict[str, str]:
        return {
            "bootstrap.servers": self.kafka.bootstrap,
            "group.id": GROUP_ID,
            "worker.id": name,
            "listeners": f"http://{HOST}:{port}",
            "session.timeout.ms": str(SESSION_TIMEOUT_MS),
            "state.dir": str(folder / "state"),
            "config.storage.replication.factor": "1",
            "offset.storage.replication.factor": "1",
            "status.storage.replication.factor": "1",
            "schema.storage.replication.factor": "1",
            "offset.storage.partitions": "5",
            # Half a gigabyte for each worker, and the processor in the middle of a demo.
            "sink.standby": "0",
            **self.worker_settings,
        }

    def kill_worker(self, name: str) -> None:
        """Kills a worker with SIGKILL, as a crash: its tasks die with it."""
        for worker in self.workers:
            if worker.id == name:
                worker.child.kill()

    def await_workers(self, timeout_s: float = WORKER_READY_TIMEOUT_S) -> None:
        """Waits until every worker answers `GET /health` with 200."""
        began = time.monotonic()
        for worker in self.workers:
            left = max(1.0, timeout_s - (time.monotonic() - began))
            worker.child.wait_until(worker.healthy, left, poll_s=0.1)
        self.timings_s["workers"] = time.monotonic() - began

    def check(self) -> None:
        """CdcError when a server has ended by itself."""
        servers: list[Server] = [self.kafka, self.postgres, *(one.server for one in self.further.values())]
        for server in servers:
            if not server.alive():
                raise CdcError(START_FAILED, f"{server.title} has ended", where={"log": str(server.log)})

    @property
    def secrets(self) -> dict[str, str]:
        """Variables of every worker, for `${env:…}` in connector configs."""
        found = {SOURCE_PASSWORD: self.postgres.password, WAREHOUSE_PASSWORD: self.postgres.password}
        for one in self.further.values():
            found |= one.secrets
        return found

    def endpoints(self) -> dict[str, Any]:
        return {
            "workers": [worker.url for worker in self.workers],
            "kafka": self.kafka.bootstrap,
            "postgres": self.postgres.dsn(SOURCE_DATABASE),
            "warehouse": self.postgres.dsn(WAREHOUSE_DATABASE),
            **{name: one.url for name, one in self.further.items()},
        }

    def log_excerpt(self) -> str:
        """Returns the warnings and errors at the end of the workers' logs, for a failed run."""
        parts = []
        for worker in self.workers:
            lines = [line for line in log_tail(worker.child.log, 400).splitlines() if NOTABLE.search(line)]
            parts += [f"{worker.id}: {line}" for line in lines[-EXCERPT_LINES:]]
        return "\n".join(parts)

    def stop(self) -> None:
        """Drains the workers side by side, then ends the servers; their data is removed with the folder."""
        for worker in self.workers:
            worker.child.send(signal.SIGTERM)
        deadline = time.monotonic() + DRAIN_TIMEOUT_S
        for worker in self.workers:
            if worker.child.wait(max(0.1, deadline - time.monotonic())) is None:
                log.warning("worker=%s did not drain within %.0f s and was killed", worker.id, DRAIN_TIMEOUT_S)
                worker.child.kill()
        self.kafka.kill()
        self.postgres.kill()
        for one in self.further.values():
            one.server.kill()

    def __enter__(self) -> DevStack:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()


def worker_environment(secrets: Mapping[str, str]) -> dict[str, str]:
    """Returns this environment with the secrets, without properties for other workers, which would override the file."""
    own = ("CDC_CACHE_DIR", "CDC_MAVEN_MIRRORS", "CDC_PG_BIN", "CDC_FAILPOINTS", "CDC_SECRET_", "CDC_TEST_")
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(own) or not name.startswith(("CDC_", "CONNECT_"))
    }
    return {**inherited, **secrets}


def write_endpoints(path: Path, endpoints: Mapping[str, Any]) -> None:
    """Writes the file whole or not at all, readable by its owner alone: it holds the generated password."""
    partial = path.with_name(f".{path.name}.partial")
    partial.touch(mode=0o600)
    partial.write_text(json.dumps(endpoints, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
