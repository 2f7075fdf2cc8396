"""A source of MariaDB that is submitted to a worker by REST."""

from __future__ import annotations

import os
import signal
from typing import Any

from cdcworker.schemas.decode import RecordDecoder

from tests import plain_http
from tests.integration import one_worker

from ..logged import LoggedServer
from .reading import config_of


class Source:
    """A connector of the tables of `shop`, submitted by REST."""

    def __init__(self, worker: one_worker.Worker, server: LoggedServer, name: str, **config: str) -> None:
        self.worker, self.name = worker, name
        self.prefix = f"{worker.group}.{name}"
        self.config = config_of(server, **config) | {"name": name, "topic.prefix": self.prefix}
        self.worker.put(name, self.config)

    def records(self, table: str) -> list[Any]:
        messages = self.worker.read(f"{self.prefix}.shop.{table}")
        # A schema is there before its first record.
        decoder = RecordDecoder(self.worker.schemas())
        return [decoder.decode(one.value()) for one in messages if one.value()]

    def wait_for(self, table: str, ops: str, count: int) -> list[Any]:
        """Returns all records of a table when so many of these operations are there."""
        found: list[Any] = []

        def there() -> bool:
            found[:] = self.records(table)
            return sum(record["op"] in ops for record in found) >= count

        self.worker.wait(there, lambda: f"{count} of {ops}, {len(found)} records")
        return found

    def ask(self, method: str, path: str = "", json: Any = None) -> Any:
        """Asked again while tasks are being stopped."""
        url = f"{self.worker.url}/connectors/{self.name}{path}"
        answered: list[Any] = []

        def answers() -> bool:
            answered[:] = [plain_http.request(method, url, json=json, timeout=60.0)]
            return answered[0].status_code != 409

        self.worker.wait(answers, f"{method} {path}")
        (answer,) = answered
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else None

    def kill(self) -> None:
        """Ends the task's process as a crash does, and waits until another runs."""
        pids = self.worker.starts(f"{self.name}-0")
        os.kill(pids[-1], signal.SIGKILL)
        self.worker.wait(lambda: len(self.worker.starts(f"{self.name}-0")) > len(pids), "another process")
