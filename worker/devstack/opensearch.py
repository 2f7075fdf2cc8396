"""An embedded server of OpenSearch on a free port of 127.0.0.1: one node of the runner's, with the modules that a sink needs."""

from __future__ import annotations

import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Final

from cdcworker.connectors.config.inherited_variables import of_java
from cdcworker.worker.devstack.ports import HOST, free_ports
from cdcworker.worker.devstack.process import EmbeddedServer, Program
from cdcworker.worker.java import jars
from cdcworker.worker.java.runtime import find_java

SECTION: Final = "opensearch"
START_S_MAX: Final = 180.0
ANSWER_S: Final = 2.0
PORTS: Final = range(5_000, 9_299)
"""The runner takes no higher ones."""
MODULES: Final = ("org.opensearch.transport.Netty4Plugin", "org.opensearch.index.reindex.ReindexPlugin")
JVM_OPTIONS: Final = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    "-Dlog4j2.disable.jmx=true",
)
SETTINGS: Final = {
    "discovery.type": "single-node",
    "network.host": HOST,
    # Several of these servers may stand on one machine whose disk is small.
    "cluster.routing.allocation.disk.threshold_enabled": "false",
    "node.processors": "2",
    "action.destructive_requires_name": "true",
}


class EmbeddedOpenSearch(EmbeddedServer):
    """One server with its data in `directory`. It has no login: it listens on this machine only."""

    title: ClassVar[str] = "OpenSearch"

    def __init__(
        self, directory: Path, *, heap: str = "320m", progress: Callable[[str], None] = lambda _: None
    ) -> None:
        self._directory, self._heap, self._progress = directory, heap, progress
        (self.port,), (self._transport,) = free_ports(1, PORTS), free_ports(1)

    @property
    def log(self) -> Path:
        return self._directory / "opensearch.log"

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def start(self) -> None:
        jars.ensure(SECTION, self._progress)
        config = self._directory / "node_1" / "config"
        config.mkdir(parents=True, exist_ok=True)
        settings = {**SETTINGS, "transport.port": str(self._transport)}
        lines = "".join(f"{name}: {value}\n" for name, value in settings.items())
        (config / "opensearch.yml").write_text(lines, encoding="utf-8")
        heap = (f"-Xms{self._heap}", f"-Xmx{self._heap}")
        runner = ("org.codelibs.opensearch.runner.OpenSearchRunner", "-basePath", str(self._directory))
        # Its nodes have the ports behind the one that it is given.
        options = (
            "-printOnFailure",
            "-numOfNode",
            "1",
            "-baseHttpPort",
            str(self.port - 1),
            "-moduleTypes",
            ",".join(MODULES),
        )
        argv = [str(find_java().program), *JVM_OPTIONS, *heap, "-cp", jars.class_path(SECTION), *runner, *options]
        self._child = Program(self.title, argv, self.log, env=of_java(os.environ))
        try:
            self._child.wait_until(self._answers, START_S_MAX, poll_s=0.1)
        except BaseException:
            self._child.kill()
            raise

    def alive(self) -> bool:
        return self._child is not None and self._child.alive()

    def kill(self) -> None:
        """Ends it as a crash does."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def stop(self) -> None:
        """Ends it at once: what it has answered is on disk."""
        self.kill()

    def remove(self) -> None:
        """Stops it and removes its data."""
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _answers(self) -> bool:
        """Whether it takes requests, with what it had before it was stopped."""
        path = "/_cluster/health?wait_for_status=yellow&timeout=1s"
        try:
            with urllib.request.urlopen(self.url + path, timeout=ANSWER_S) as answer:  # noqa: S310  on this machine
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False
