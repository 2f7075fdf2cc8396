"""One `cdcworker start` process for tests: its REST API, its log, the processes of its tasks."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
from cdcworker.coordinator.kafka.compacted_log import KafkaCompactedLog
from cdcworker.schemas.log import SchemaLog
from cdcworker.worker.devstack.ports import free_ports
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from tests import plain_http
from tests.waiting import pause

DEADLINE_S = 60.0
STARTED = re.compile(r"task started task=(\S+) pid=(\d+)")


class Worker:
    """Properties are given with underscores for dots; `variables` are added to the environment."""

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        group: str,
        name: str = "w1",
        *,
        variables: Mapping[str, str] | None = None,
        **properties: str,
    ) -> None:
        (port,) = free_ports(1)
        self.bootstrap, self.group, self.name = bootstrap, group, name
        self.url = f"http://127.0.0.1:{port}"
        self.prefix = group
        """Of the topics of one test's connectors; `clear` chooses another one."""
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "listeners": self.url,
            "worker.id": name,
            "session.timeout.ms": "6000",
            "offset.storage.replication.factor": "1",
            "offset.storage.partitions": "3",
            **{key.replace("_", "."): value for key, value in properties.items()},
        }
        path = folder / f"{name}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [str(Path(sys.executable).with_name("cdcworker")), "start", "--config", str(path)],
                stdout=out,
                stderr=out,
                env={**os.environ, **(variables or {})},
            )

    # -- REST ---------------------------------------------------------------------------------------------------------

    def get(self, path: str) -> Any:
        return plain_http.get(self.url + path, timeout=30.0).json()

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        """Sends a request that only a leader answers. It is sent again while there is none: a worker is healthy a moment before
        one is elected."""

        def answered() -> httpx.Response | None:
            answer = plain_http.request(method, self.url + path, json=body, timeout=60.0)
            return None if answer.status_code == 409 else answer

        found: httpx.Response = self.wait(answered, "a leader")
        return found

    def put(self, name: str, config: dict[str, str]) -> None:
        answer = self.ask("PUT", f"/connectors/{name}/config", config)
        assert answer.status_code in (200, 201), answer.text

    def task(self, name: str, number: int = 0) -> dict[str, Any]:
        """Of `/v1/cluster`: state, worker, epoch, metrics, error."""
        tasks = self.get("/v1/cluster")["tasks"]
        return next(task for task in tasks if (task["connector"], task["task"]) == (name, number))

    def wait(self, condition: Callable[[], Any], what: str | Callable[[], str], timeout_s: float = DEADLINE_S) -> Any:
        began = time.monotonic()
        while True:
            assert self.process.poll() is None, self.log.read_text()[-20_000:]
            try:
                found = condition()
            except (httpx.HTTPError, KeyError, IndexError, ValueError, StopIteration):
                found = None
            if found:
                return found
            if time.monotonic() >= began + timeout_s:
                missing = what if isinstance(what, str) else what()
                raise AssertionError(f"not in time: {missing}\n{self.log.read_text()[-20_000:]}")
            pause(began, 0.05)

    def wait_ready(self) -> None:
        self.wait(lambda: self.get("/health")["status"] == "healthy", "health")

    def wait_state(self, name: str, state: str, number: int = 0, timeout_s: float = DEADLINE_S) -> dict[str, Any]:
        def there() -> Any:
            task = self.task(name, number)
            return task if task["state"] == state else None

        found: dict[str, Any] = self.wait(there, f"{name}-{number} {state}", timeout_s)
        return found

    # -- processes ----------------------------------------------------------------------------------------------------

    def starts(self, task: str) -> list[int]:
        """Process ids of all starts of a task, oldest first."""
        return [int(pid) for name, pid in STARTED.findall(self.log.read_text()) if name == task]

    def clear(self) -> None:
        """Deletes all connectors, for the next test, whose connectors begin anew under the same names."""
        for name in self.get("/connectors"):
            for method, path in (("PUT", f"/connectors/{name}/stop"), ("DELETE", f"/connectors/{name}")):
                self.wait(
                    lambda: plain_http.request(method, self.url + path, timeout=60.0).status_code == 204,  # noqa: B023 - called at once
                    f"{method} {path}",
                )
        self.wait(lambda: self.get("/v1/cluster")["tasks"] == [], "no task")
        self.prefix = f"{self.group}-{secrets.token_hex(3)}"

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_S)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    # -- topics -------------------------------------------------------------------------------------------------------

    def read(self, topic: str) -> list[Any]:
        """Every committed record of a topic up to its end as it is now, partition by partition."""
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "t", "enable.partition.eof": True}
        consumer = Consumer({**settings, "isolation.level": "read_committed"})
        numbers = list(consumer.list_topics(topic, 10.0).topics[topic].partitions)
        places = {number: TopicPartition(topic, number, OFFSET_BEGINNING) for number in numbers}
        ends = {number: self._end_of(consumer, place) for number, place in places.items()}
        consumer.assign(list(places.values()))
        found = []
        while ends:
            for message in consumer.consume(1000, 0.1):
                if message.error():  # the end, which is not told while records keep coming
                    ends.pop(message.partition(), None)
                else:
                    found.append(message)
            for place in consumer.position([places[number] for number in ends]):
                if place.offset >= ends[place.partition]:
                    del ends[place.partition]
        consumer.close()
        return sorted(found, key=lambda message: (message.partition(), message.offset()))

    def _end_of(self, consumer: Consumer, place: TopicPartition) -> int:
        """A partition that was made a moment ago has no leader yet."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                return consumer.get_watermark_offsets(place, 10.0)[1]
            except KafkaException:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(0.1)

    def schemas(self) -> SchemaLog:
        log = KafkaCompactedLog({"bootstrap.servers": self.bootstrap}, f"{self.group}.schemas", client_id="t")
        view = SchemaLog((record.key, record.value) for record in log.read_to_end(30.0))
        log.close()
        return view


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def shown(value: Any) -> str:
    return json.dumps(value, indent=1)
