"""An embedded Kafka: one KRaft node in combined mode, on free ports of 127.0.0.1."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import struct
import uuid
from collections.abc import Mapping
from pathlib import Path
from socket import create_connection
from types import TracebackType

from cdcworker.schemas.errors import CdcError
from cdcworker.worker.devstack import jars
from cdcworker.worker.devstack.errors import START_FAILED
from cdcworker.worker.devstack.java import Java, find_java
from cdcworker.worker.devstack.ports import HOST, free_ports
from cdcworker.worker.devstack.process import Child, log_tail, run

FORMAT_TIMEOUT_S = 60.0
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
API_VERSIONS_REQUEST = struct.pack(">hhih", 18, 0, 1, -1)

DEFAULTS: dict[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    "delete.topic.enable": "true",
    "log.cleaner.dedupe.buffer.size": "8388608",
    "log.retention.check.interval.ms": "60000",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "num.partitions": "1",
}
JVM_OPTIONS = ("-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true")


class EmbeddedKafka:
    """One broker whose data and log live in `directory`; it comes back on the same ports after `restart`."""

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str] | None = None,
        *,
        heap: str = "512m",
        progress: jars.Progress | None = None,
    ) -> None:
        self.directory = directory
        self.settings = dict(settings or {})
        self.heap = heap
        self._progress = progress
        self._child: Child | None = None
        self._java: Java | None = None
        self.port = 0
        self.controller_port = 0

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def log(self) -> Path:
        return self.directory / "kafka.log"

    def start(self) -> None:
        """Format on the first start, launch, wait until the broker answers."""
        self.launch()
        self.await_ready()

    def launch(self) -> None:
        """The first half of `start`, so that other servers can start meanwhile."""
        jars.ensure("kafka", self._progress)
        self._java = self._java or find_java()
        if not self.port:
            self.directory.mkdir(parents=True, exist_ok=True)
            self.port, self.controller_port = free_ports(2)
            self._configure()
            self._format()
        arguments = [*JVM_OPTIONS, f"-Xmx{self.heap}", f"-Xms{self.heap}", "-cp", self._class_path()]
        argv = [str(self._java.program), *arguments, "kafka.Kafka", str(self._properties)]
        self._child = Child("Kafka", argv, self.log, env=self._environment())

    def await_ready(self) -> None:
        try:
            self._running().wait_until(lambda: answers(self.port), START_TIMEOUT_S)
        except BaseException:
            self.kill()
            raise

    def alive(self) -> bool:
        return self._child is not None and self._child.alive()

    def stop(self) -> None:
        """Clean shutdown, killed past the deadline; nothing happens when it does not run."""
        if self._child is not None:
            self._child.stop(timeout_s=STOP_TIMEOUT_S)
            self._child = None

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze the broker: connections stay open and nobody answers."""
        self._running().send(signal.SIGSTOP)

    def resume(self) -> None:
        self._running().send(signal.SIGCONT)

    def remove(self) -> None:
        """Stop and delete the data."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> EmbeddedKafka:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def _running(self) -> Child:
        if self._child is None:
            raise CdcError(START_FAILED, "Kafka is not running")
        return self._child

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    def _configure(self) -> None:
        broker, controller = f"{HOST}:{self.port}", f"{HOST}:{self.controller_port}"
        settings = DEFAULTS | {
            "controller.quorum.bootstrap.servers": controller,
            "listeners": f"PLAINTEXT://{broker},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{broker}",
            "log.dirs": str(self.directory / "data"),
        }
        settings |= self.settings
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        self._properties.write_text(text, encoding="utf-8")

    def _format(self) -> None:
        assert self._java is not None
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        argv = [str(self._java.program), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m"]
        argv += ["-cp", self._class_path(), "kafka.tools.StorageTool", "format", "--standalone"]
        argv += [f"--cluster-id={cluster_id}", "-c", str(self._properties)]
        log = self.directory / "format.log"
        if run(argv, log, name="kafka-storage", timeout_s=FORMAT_TIMEOUT_S) != 0:
            raise CdcError(START_FAILED, f"Kafka's storage was not formatted:\n{log_tail(log)}")

    def _class_path(self) -> str:
        return jars.folder("kafka").as_posix() + "/*"

    def _environment(self) -> dict[str, str]:
        """Without the options that other Java programs are given through the environment."""
        hidden = {"KAFKA_OPTS", "KAFKA_HEAP_OPTS", "CLASSPATH"}
        return {name: value for name, value in os.environ.items() if name not in hidden}


def answers(port: int) -> bool:
    """Whether a broker answers ApiVersions at the port."""
    try:
        with create_connection((HOST, port), timeout=1.0) as connection:
            connection.sendall(struct.pack(">i", len(API_VERSIONS_REQUEST)) + API_VERSIONS_REQUEST)
            return len(connection.recv(4)) == 4
    except OSError:
        return False
