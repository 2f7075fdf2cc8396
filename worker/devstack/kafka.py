"""An embedded Kafka: one KRaft node in combined mode, on free ports of 127.0.0.1."""

from __future__ import annotations

import base64
import os
import shutil
import struct
import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from socket import create_connection

from cdcworker.connectors.class_archive import ClassArchive
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.devstack.errors import START_FAILED
from cdcworker.worker.devstack.ports import HOST, free_ports
from cdcworker.worker.devstack.process import EmbeddedServer, Program, log_tail, run
from cdcworker.worker.java import jars
from cdcworker.worker.java.runtime import JavaInstall, find_java

FORMAT_TIMEOUT_S = 180.0
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 15.0
FEATURES = "bootstrap.checkpoint"
"""The file of a formatted storage that holds the levels of Kafka's features."""
API_VERSIONS_REQUEST = struct.pack(">hhih", 18, 0, 1, -1)

NODE_ID = "1"
DEFAULTS: dict[str, str] = {
    "process.roles": "broker,controller",
    "node.id": NODE_ID,
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
    # One controller without followers: nobody waits for its heartbeat in the metadata log.
    "metadata.max.idle.interval.ms": "5000",
}
JVM_OPTIONS = ("-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true")
QUICK_COMPILER_ONLY = ("-XX:TieredStopAtLevel=1",)
"""For a broker with little to do: what the optimizing compiler costs comes back under load only."""


class EmbeddedKafka(EmbeddedServer):
    """One broker whose data and log are in `directory`; it keeps its ports after `restart`."""

    title = "Kafka"

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str] | None = None,
        *,
        heap: str = "512m",
        jvm_options: Sequence[str] = (),
        progress: jars.Progress | None = None,
    ) -> None:
        self.directory = directory
        self.settings = dict(settings or {})
        self.heap = heap
        self.jvm_options = tuple(jvm_options)
        self._progress = progress
        self._java: JavaInstall | None = None
        self._classes: ClassArchive | None = None
        self._archived: list[str] = []
        self._archiving: threading.Thread | None = None
        self._ended = threading.Event()
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
        """Formats the storage on the first start, launches the broker, and waits until it answers."""
        self.launch()
        self.await_ready()

    def launch(self) -> None:
        """Does the first half of `start`, so that other servers can start at the same time."""
        jars.ensure("kafka", self._progress)
        self._java = self._java or find_java()
        program = str(self._java.program)
        self._classes = ClassArchive(_cache(), program, jars.class_path("kafka").split(os.pathsep), JVM_OPTIONS)
        if not self.port:
            self.directory.mkdir(parents=True, exist_ok=True)
            self.port, self.controller_port = free_ports(2)
            self._configure()
            self._format()
        self._archived = self._classes.options(self._loaded_classes)
        arguments = [*JVM_OPTIONS, *self._archived, *self.jvm_options, f"-Xmx{self.heap}", f"-Xms{self.heap}"]
        argv = [program, *arguments, "-cp", jars.class_path("kafka"), "kafka.Kafka", str(self._properties)]
        self._child = Program("Kafka", argv, self.log, env=self._environment())

    def await_ready(self) -> None:
        assert self._classes is not None
        try:
            self._running().wait_until(lambda: answers(self.port), START_TIMEOUT_S)
        except BaseException:
            if self._archived and not self.alive():
                self._classes.distrust()
            self.kill()
            raise
        self._ended.clear()
        self._archiving = self._classes.make_in_background(self._loaded_classes, self._ended.is_set)

    def alive(self) -> bool:
        return self._child is not None and self._child.alive()

    def stop(self) -> None:
        """Shuts the broker down, killed after the time limit. Does nothing when it does not run."""
        self._end_archiving()
        if self._child is not None:
            self._child.stop(timeout_s=STOP_TIMEOUT_S)
            self._child = None

    def kill(self) -> None:
        """Kills the broker with SIGKILL, as a crash."""
        self._end_archiving()
        if self._child is not None:
            self._child.kill()
            self._child = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freezes the broker: connections stay open and nothing answers."""
        self._running().freeze()

    def resume(self) -> None:
        self._running().thaw()

    def remove(self) -> None:
        """Kills the broker and deletes its data."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _end_archiving(self) -> None:
        """Leaves no process behind that writes an archive."""
        self._ended.set()
        if self._archiving is not None:
            self._archiving.join()
            self._archiving = None

    @property
    def _loaded_classes(self) -> Path:
        return self.directory / "classes"

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    def _configure(self) -> None:
        broker, controller = f"{HOST}:{self.port}", f"{HOST}:{self.controller_port}"
        settings = DEFAULTS | {
            "controller.quorum.voters": f"{NODE_ID}@{controller}",
            "listeners": f"PLAINTEXT://{broker},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{broker}",
            "log.dirs": str(self.directory / "data"),
        }
        settings |= self.settings
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        self._properties.write_text(text, encoding="utf-8")

    def _format(self) -> None:
        """Writes what Kafka's storage tool writes. Its levels of features are the same for each broker of a version: they
        are kept, and the tool runs once."""
        assert self._classes is not None
        kept = self._classes.path.with_suffix(".checkpoint")
        data = self.directory / "data"
        if not kept.exists():
            self._run_storage_tool()
            kept.parent.mkdir(parents=True, exist_ok=True)
            partial = kept.with_name(f".{uuid.uuid4().hex}")
            shutil.copyfile(data / FEATURES, partial)
            partial.replace(kept)
            return
        data.mkdir()
        shutil.copyfile(kept, data / FEATURES)
        properties = {"version": "1", "node.id": NODE_ID, "cluster.id": _kafka_uuid(), "directory.id": _kafka_uuid()}
        (data / "meta.properties").write_text("".join(f"{name}={value}\n" for name, value in properties.items()))

    def _run_storage_tool(self) -> None:
        assert self._java is not None
        argv = [str(self._java.program), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m"]
        argv += ["-cp", jars.class_path("kafka"), "kafka.tools.StorageTool", "format"]
        argv += [f"--cluster-id={_kafka_uuid()}", "-c", str(self._properties)]
        log = self.directory / "format.log"
        if run(argv, log, name="kafka-storage", timeout_s=FORMAT_TIMEOUT_S) != 0:
            raise CdcError(START_FAILED, f"Kafka's storage was not formatted:\n{log_tail(log)}")

    def _environment(self) -> dict[str, str]:
        """Returns the environment without options that are meant for other Java programs."""
        hidden = {"KAFKA_OPTS", "KAFKA_HEAP_OPTS", "CLASSPATH"}
        return {name: value for name, value in os.environ.items() if name not in hidden}


def _cache() -> Path:
    """Where archives of classes and formats of Kafka's versions are kept, apart from those of sinks."""
    return jars.cache_dir() / "kafka"


def _kafka_uuid() -> str:
    """Returns a new id as Kafka writes it. One that begins with a dash would be taken for an option."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()).startswith("-"):
        pass
    return text


def answers(port: int) -> bool:
    """Returns whether a broker answers ApiVersions on the port."""
    try:
        with create_connection((HOST, port), timeout=1.0) as connection:
            connection.sendall(struct.pack(">i", len(API_VERSIONS_REQUEST)) + API_VERSIONS_REQUEST)
            return len(connection.recv(4)) == 4
    except OSError:
        return False
