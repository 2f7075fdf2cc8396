"""ClickHouse's engine as a server of its own process: `make servers` installs it from `locks/clickhouse.txt`."""

from __future__ import annotations

import http.client
import os
import shutil
import sys
from pathlib import Path
from typing import Any, ClassVar

from cdcworker.connectors.warehouses.clickhouse.client import Client, ServerPlace
from cdcworker.worker.devstack.ports import free_ports
from cdcworker.worker.devstack.process import EmbeddedServer, Program

HOST = "127.0.0.1"
START_S_MAX = 60.0
OWN = ("default", "system", "information_schema", "INFORMATION_SCHEMA")


def find_engine() -> Path | None:
    """Returns the folder of the engine's package; None where it was not installed."""
    places = (os.environ.get("CDC_CLICKHOUSE", ""), str(Path(sys.prefix) / "clickhouse"))
    return next((Path(place) for place in places if place and Path(place, "chdb").is_dir()), None)


class ClickHouseServer(EmbeddedServer):
    """A server whose tables are in `directory`."""

    title: ClassVar[str] = "ClickHouse's engine"

    def __init__(self, engine: Path, directory: Path) -> None:
        self._engine = engine
        self._directory = directory
        (self.port,) = free_ports(1)
        self._client = Client(self.place())

    def start(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        program = Path(__file__).with_name("engine.py")
        argv = [sys.executable, str(program), str(self.port), str(self._directory / "data")]
        env = {**os.environ, "PYTHONPATH": str(self._engine)}
        self._child = Program("clickhouse", argv, self._directory / "clickhouse.log", env=env)
        self._child.wait_until(self._answers, START_S_MAX)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=1)
        try:
            connection.request("GET", "/ping")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    @property
    def pid(self) -> int:
        return self._running().pid

    def stop(self) -> None:
        self._client.close()
        if self._child is not None:
            self._child.stop(timeout_s=5)

    def remove(self) -> None:
        """Ends it, and removes its tables."""
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def kill(self) -> None:
        """Ends it at once, in the middle of whatever it does."""
        self._running().kill()

    def place(self, **more: str) -> ServerPlace:
        """Returns what a warehouse logs in with."""
        return ServerPlace(HOST, self.port, "default", "", **more)

    def ask(self, *statements: str) -> None:
        """Executes statements."""
        for statement in statements:
            self._client.do(statement)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Returns the rows of a query; texts are bytes."""
        found = self._client.ask(query)
        return list(zip(*(column.to_pylist() for column in found.columns), strict=True))

    def wipe(self) -> None:
        """Drops every database but the server's own."""
        for (name,) in self.rows("select name from system.databases"):
            if name.decode() not in OWN:
                self.ask(f"drop database `{name.decode()}` sync")
