"""A genuine Kafka Connect worker in distributed mode, beside a broker that runs already."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx
from cdcworker.worker.devstack.ports import HOST, free_ports
from cdcworker.worker.devstack.process import EmbeddedServer, Program
from cdcworker.worker.java.runtime import find_java

from tests import plain_http

START_TIMEOUT_S = 300.0
JAVA_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC")
LOGGING = """
appender.console.type = Console
appender.console.name = STDOUT
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = INFO
rootLogger.appenderRef.stdout.ref = STDOUT
"""


class GenuineConnect(EmbeddedServer):
    """One worker of a group of its own; `url` is where it answers."""

    title = "Kafka Connect"

    def __init__(
        self,
        directory: Path,
        bootstrap: str,
        libraries: Sequence[Path],
        properties: Mapping[str, str] | None = None,
        java_options: Sequence[str] = JAVA_OPTIONS,
    ) -> None:
        self.directory, self.libraries, self.java_options = directory, libraries, java_options
        self.group = f"genuine-{uuid.uuid4().hex[:8]}"
        (self.port,) = free_ports(1)
        self.url = f"http://{HOST}:{self.port}"
        self._properties = {
            "bootstrap.servers": bootstrap,
            "group.id": self.group,
            "listeners": self.url,
            "rest.advertised.host.name": HOST,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "offset.flush.interval.ms": "500",
            "plugin.discovery": "service_load",
            **{
                f"{kind}.storage.{name}": value
                for kind in ("config", "offset", "status")
                for name, value in (("topic", f"{self.group}.{kind}"), ("replication.factor", "1"), ("partitions", "1"))
                if (kind, name) != ("config", "partitions")
            },
            **(properties or {}),
        }

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def log(self) -> Path:
        return self.directory / "connect.log"

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        path, logging = self.directory / "connect.properties", self.directory / "log4j2.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in self._properties.items()))
        logging.write_text(LOGGING)
        argv = [str(find_java().program), *self.java_options, f"-Dlog4j2.configurationFile={logging}"]
        argv += ["-cp", os.pathsep.join(map(str, self.libraries))]
        argv += ["org.apache.kafka.connect.cli.ConnectDistributed", str(path)]
        self._child = Program("Kafka Connect", argv, self.log)
        try:
            self._child.wait_until(self.answers, START_TIMEOUT_S, poll_s=0.1)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop(timeout_s=20.0)
            self._child = None

    def answers(self) -> bool:
        """Whether it serves requests that need the cluster, too."""
        try:
            return plain_http.get(f"{self.url}/health", timeout=2.0).status_code == 200
        except httpx.HTTPError:
            return False
