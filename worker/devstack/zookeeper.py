"""An embedded ZooKeeper from the jars inside the pyspark wheel: one server, or an ensemble, on free ports of 127.0.0.1."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from cdcworker.schemas.errors import CdcError
from cdcworker.worker.devstack.errors import START_FAILED
from cdcworker.worker.devstack.ports import HOST, free_ports
from cdcworker.worker.devstack.process import Program
from cdcworker.worker.java.runtime import find_java

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 10.0
MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
LIBRARIES = ("zookeeper", "zookeeper-jute", "metrics-core", "snappy-java", "slf4j-api", "log4j-slf4j2-impl", "log4j-api", "log4j-core")  # fmt: skip
JVM_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xmx128m",
    "-Djava.awt.headless=true",
    # Its data need not survive the machine: without it every write waits for the disk.
    "-Dzookeeper.forceSync=no",
)
SETTINGS: dict[str, str] = {
    # Sessions last between 2 and 20 ticks unless said otherwise, and end on a multiple of a tick.
    "tickTime": "250",
    "maxSessionTimeout": "60000",
    "initLimit": "60",
    "syncLimit": "20",
    "maxClientCnxns": "0",
    "clientPortAddress": HOST,
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "srvr",
}


class EmbeddedZooKeeper:
    """An ensemble of `servers` whose data are in `directory`; every server keeps its ports."""

    def __init__(self, directory: Path, *, servers: int = 1, settings: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.settings = {**SETTINGS, **(settings or {})}
        self.count = servers
        self._children: list[Program | None] = [None] * servers
        self._ports: list[int] = []
        self._peers: list[tuple[int, int]] = []

    @property
    def connect(self) -> str:
        """The connect string of clients."""
        return ",".join(f"{HOST}:{port}" for port in self._ports)

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children if child is not None]

    def start(self) -> None:
        """Launches every server that does not run, and waits until all of them serve."""
        if not self._ports:
            ports = free_ports(3 * self.count)
            self._ports = ports[: self.count]
            self._peers = [(ports[self.count + 2 * n], ports[self.count + 2 * n + 1]) for n in range(self.count)]
        for number in range(self.count):
            if self._children[number] is None:
                self._launch(number)
        try:
            for number in range(self.count):
                self._await(number)
        except BaseException:
            self.kill()
            raise

    def start_server(self, number: int) -> None:
        """Starts one server again."""
        self._launch(number)
        self._await(number)

    def kill_server(self, number: int) -> None:
        """Kills one server with SIGKILL, as a crash."""
        child, self._children[number] = self._children[number], None
        if child is not None:
            child.kill()

    def mode(self, number: int) -> str:
        """Returns `leader`, `follower` or `standalone`; empty while the server does not serve."""
        return mode_at(self._ports[number])

    def stop(self) -> None:
        """Stops every server, killed after the time limit."""
        for number, child in enumerate(self._children):
            if child is not None:
                child.stop(timeout_s=STOP_TIMEOUT_S)
                self._children[number] = None

    def kill(self) -> None:
        for number in range(self.count):
            self.kill_server(number)

    def pause(self) -> None:
        """Freezes all servers: connections stay open and nothing answers."""
        for child in self._children:
            if child is not None:
                child.freeze()

    def resume(self) -> None:
        for child in self._children:
            if child is not None:
                child.thaw()

    def rebuild(self) -> None:
        """Deletes all data and starts on the same ports: another ensemble at the same address."""
        self.remove()
        self.start()

    def remove(self) -> None:
        """Kills the servers and deletes their data."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> EmbeddedZooKeeper:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def _folder(self, number: int) -> Path:
        return self.directory / f"server-{number + 1}"

    def _launch(self, number: int) -> None:
        folder = self._folder(number)
        (folder / "data").mkdir(parents=True, exist_ok=True)
        settings = {
            **self.settings,
            "dataDir": str(folder / "data"),
            "clientPort": str(self._ports[number]),
        }
        if self.count > 1:
            (folder / "data" / "myid").write_text(f"{number + 1}\n", encoding="ascii")
            for other, (quorum, election) in enumerate(self._peers):
                settings[f"server.{other + 1}"] = f"{HOST}:{quorum}:{election}"
        config = folder / "zoo.cfg"
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
        class_path = os.pathsep.join(str(path) for path in libraries())
        argv = [str(find_java().program), *JVM_OPTIONS, "-cp", class_path, MAIN, str(config)]
        self._children[number] = Program(f"ZooKeeper {number + 1}", argv, folder / "zookeeper.log", env=environment())

    def _await(self, number: int) -> None:
        child = self._children[number]
        if child is None:
            raise CdcError(START_FAILED, f"ZooKeeper server {number + 1} is not running")
        child.wait_until(lambda: self.mode(number) != "", START_TIMEOUT_S)


def mode_at(port: int) -> str:
    """Returns the mode that the server on the port reports; empty without an answer or a quorum."""
    try:
        with socket.create_connection((HOST, port), timeout=1.0) as connection:
            connection.sendall(b"srvr")
            answer = b""
            while piece := connection.recv(4096):
                answer += piece
    except OSError:
        return ""
    _, separator, mode = answer.decode("utf-8", "replace").partition("Mode: ")
    return mode.split("\n")[0].strip() if separator else ""


def libraries() -> Sequence[Path]:
    """Returns ZooKeeper's jars with those that it needs at run time, all from the pyspark wheel."""
    spec = importlib.util.find_spec("pyspark")
    folder = Path(spec.origin).parent / "jars" if spec is not None and spec.origin is not None else Path()
    paths = []
    for name in LIBRARIES:
        jars = sorted(folder.glob(f"{name}-[0-9]*.jar"))
        if not jars:
            raise CdcError(START_FAILED, f"{name} is not among pyspark's jars", where={"folder": str(folder)})
        paths.append(jars[-1])
    return paths


def environment() -> dict[str, str]:
    """Returns the environment without options that are meant for other Java programs."""
    hidden = {"CLASSPATH", "SERVER_JVMFLAGS", "JVMFLAGS"}
    return {name: value for name, value in os.environ.items() if name not in hidden}
