"""Both connectors on one server, and what each has written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cdcworker.worker.devstack.ports import HOST
from confluent_kafka.admin import AdminClient

from tests import plain_http
from tests.genuine import parts
from tests.genuine.connect import GenuineConnect
from tests.genuine.sources import formats
from tests.integration.one_worker import Worker

from .debezium_events import Record, comparable
from .logged import LoggedServer

CLASS = "io.debezium.connector.mariadb.MariaDbConnector"
DEADLINE_S = 180.0


class Both:
    """`ours` and `theirs` are the prefixes of their topics."""

    def __init__(self, worker: Worker, connect: GenuineConnect, server: LoggedServer) -> None:
        self._worker, self._connect, self._server = worker, connect, server
        self.ours, self.theirs = f"{worker.group}.ours", f"{worker.group}.theirs"

    def start(self, **more: str) -> None:
        config = {
            "connector.class": CLASS,
            "tasks.max": "1",
            "database.hostname": HOST,
            "database.port": str(self._server.port),
            "database.user": "cdc",
            "database.password": self._server.password,
            "database.include.list": "shop",
            "skipped.operations": "none",
            "topic.creation.default.replication.factor": "1",
            "topic.creation.default.partitions": "1",
            **formats(schemas=True),
            **more,
        }
        topic = f"{self.theirs}.history"
        history = {"bootstrap.servers": self._worker.bootstrap, "topic": topic}
        theirs = config | {f"schema.history.internal.kafka.{name}": value for name, value in history.items()}
        theirs |= {"topic.prefix": self.theirs, "database.server.id": "5001", "extended.headers.enabled": "false"}
        answer = plain_http.post(
            f"{self._connect.url}/connectors", json={"name": "theirs", "config": theirs}, timeout=60.0
        )
        assert answer.status_code == 201, answer.text
        self._worker.put("ours", config | {"topic.prefix": self.ours, "database.server.id": "5002"})

    def topics(self, prefix: str) -> dict[str, str]:
        """The names of its topics without the prefix."""
        found = AdminClient({"bootstrap.servers": self._worker.bootstrap}).list_topics(timeout=30.0).topics
        named = {name: name.removeprefix(prefix).removeprefix(".") for name in found if name.startswith(prefix)}
        return {short: name for name, short in named.items() if short != "history"}

    def records(self, prefix: str, topic: str) -> list[Record]:
        names = self.topics(prefix)
        return [comparable(one, prefix) for one in self._worker.read(names[topic])] if topic in names else []

    def wait_for(self, topic: str, holds: Any, what: str) -> None:
        """Until the records of a topic that each of both has written are as wanted."""
        for prefix in (self.theirs, self.ours):
            self._worker.wait(
                lambda prefix=prefix: holds(self.records(prefix, topic)), lambda: self._told(what), DEADLINE_S
            )

    def _told(self, what: str) -> str:
        status = plain_http.get(f"{self._connect.url}/connectors/theirs/status", timeout=10.0).text
        return f"{what}: {sorted(self.topics(self.theirs))} {sorted(self.topics(self.ours))}\n{status[:3000]}"


@contextmanager
def running(kafka: Any, folder: Path, server: LoggedServer, group: str) -> Iterator[Both]:
    libraries = [*parts.libraries("connect"), *parts.libraries("mariadb")]
    worker = Worker(folder, kafka.bootstrap, group)
    try:
        worker.wait_ready()
        with GenuineConnect(folder / "connect", kafka.bootstrap, libraries) as connect:
            yield Both(worker, connect, server)
    finally:
        worker.kill()
