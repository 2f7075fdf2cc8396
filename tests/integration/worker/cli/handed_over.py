"""Two writers on a table, Debezium on a genuine Kafka Connect, and our worker: a connector goes to and fro between the two under load."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests import plain_http
from tests.genuine.connect import GenuineConnect
from tests.integration.one_worker import Worker

DEADLINE_S = 400.0
NAME = "shop"
MORE = 2_500
FIRST_KEYS = (10_000_000, 20_000_000)
"""Each writer has keys of its own, from here on."""
Event = tuple[str, int, int | None]
"""Operation, key, and the number that the change has written."""
Execute = Callable[[Sequence[str]], None]
"""Executes the statements of one transaction."""


class Writer(threading.Thread):
    """Writes until it is stopped, and knows what it has written, in the order of its commits."""

    def __init__(self, first_key: int, execute: Execute, many: str) -> None:
        """`many`: the statement that inserts `{count}` rows from `{key}` on, all with the number `{number}`."""
        super().__init__()
        self._execute, self._many, self._key = execute, many, first_key
        self._numbers = itertools.count(1)
        self._ended = threading.Event()
        self.first_key = first_key
        self.written: list[Event] = []
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            for turn in itertools.count():
                if self._ended.is_set():
                    return
                self._transaction(inserts=(1, 100, 7, 800)[turn % 4])
                self._ended.wait(0.3)
        except Exception as error:  # noqa: BLE001 - told by `end`, in the thread of the test
            self.error = error

    def end(self) -> None:
        self._ended.set()
        self.join()
        assert self.error is None, self.error

    def _transaction(self, inserts: int) -> None:
        key, number = self._key, next(self._numbers)
        self._key += inserts
        statements = [self._many.format(key=key, count=inserts, number=number)]
        events: list[Event] = [("c", key + one, number) for one in range(inserts)]
        for one in range(min(inserts, 5)):
            number = next(self._numbers)
            statements.append(f"update orders set n = {number} where id = {key + one}")
            events.append(("u", key + one, number))
        statements.append(f"delete from orders where id = {key}")
        events.append(("d", key, None))
        self._execute(statements)
        self.written += events


class HandedOver:
    """The connector `shop`, in Kafka Connect or here."""

    def __init__(self, worker: Worker, connect: GenuineConnect, topic: str) -> None:
        self.worker, self.connect = worker, connect
        settings = {"bootstrap.servers": worker.bootstrap, "group.id": "t", "isolation.level": "read_committed"}
        admin = AdminClient({"bootstrap.servers": worker.bootstrap})
        admin.create_topics([NewTopic(topic, 1)])[topic].result(60.0)
        self._consumer = Consumer(settings)
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        self._found: list[Event] = []

    def create(self, config: Mapping[str, str], execute: Execute) -> None:
        """Creates Debezium's connector and waits until it hands on changes."""
        body = {"name": NAME, "config": dict(config)}
        answer = plain_http.post(f"{self.connect.url}/connectors", json=body, timeout=60.0)
        assert answer.status_code == 201, answer.text
        probes = itertools.count(1)

        def is_streaming() -> bool:
            execute([f"insert into orders values ({next(probes)}, 0)"])
            return bool(self._changes())

        self.worker.wait(is_streaming, lambda: f"the first change\n{self._told()}", DEADLINE_S)

    def cdcworker(self, *arguments: str, code: int = 0) -> str:
        environment = {**os.environ, "CDC_URL": self.worker.url}
        environment.pop("CDC_CONTEXT", None)
        argv = [str(Path(sys.executable).with_name("cdcworker")), *arguments]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == code, f"{done.stdout}{done.stderr}\n{self.worker.log.read_text()[-5000:]}"
        return done.stdout + done.stderr

    def events(self) -> list[Event]:
        """All changes of the writers, as a reader of committed records sees them; rows of the snapshot are none."""
        return [event for event in self._changes() if event[1] >= FIRST_KEYS[0]]

    def _changes(self) -> list[Event]:
        """Reads what has come since the last time."""
        while messages := self._consumer.consume(1000, 0.5):
            values = [json.loads(one.value()) for one in messages if not one.error() and one.value() is not None]
            self._found += [_event(value) for value in values if value["op"] != "r"]
        return self._found

    def wait_for(self, holds: Callable[[list[Event]], bool], what: str) -> None:
        self.worker.wait(lambda: holds(self.events()), lambda: f"{what}\n{self._told()}", DEADLINE_S)

    def wait_more(self) -> None:
        """Waits until so much more is written that a large transaction is among it."""
        before = len(self.events())
        self.wait_for(lambda found: len(found) > before + MORE, f"{MORE} more changes")

    def close(self) -> None:
        self._consumer.close()

    def told(self, what: str) -> str:
        """Adds what Kafka Connect says of tasks that it has given up."""
        lines = self.connect.log.read_text().splitlines()
        return "\n".join([what, *(line for line in lines if "raceful" in line or "offsets" in line.lower())][:60])

    def _told(self) -> str:
        status = plain_http.get(f"{self.connect.url}/connectors/{NAME}/status", timeout=10.0).text
        return f"{status[:3000]}\n{self.connect.log.read_text()[-3000:]}"


def _event(value: Mapping[str, Any]) -> Event:
    row = value["after"] or value["before"]
    return value["op"], row["id"], value["after"]["n"] if value["after"] else None


def goes_to_and_fro(both: HandedOver, writers: Sequence[Writer], rounds: int) -> None:
    """Takes the connector over and gives it back, so many times, while the writers write; then every change is there, once."""
    for one in writers:
        one.start()
    try:
        both.wait_more()
        both.cdcworker("import", "debezium", "--connect", both.connect.url, "--dry-run")
        for _ in range(rounds):
            told = both.cdcworker("import", "debezium", "--connect", both.connect.url)
            assert f"{NAME} runs" in told
            both.wait_more()
            told = both.cdcworker("export", "debezium", NAME, "--connect", both.connect.url)
            assert f"{NAME} of Debezium runs" in told
            both.wait_more()
            plain_http.delete(f"{both.worker.url}/connectors/{NAME}/offsets", timeout=60.0)
            plain_http.delete(f"{both.worker.url}/connectors/{NAME}", timeout=60.0)
    finally:
        for one in writers:
            one.end()
    wanted = sum(len(one.written) for one in writers)
    both.wait_for(lambda found: len(found) >= wanted, f"{wanted} changes")
    found = both.events()
    written = [event for one in writers for event in one.written]
    lost, doubled = Counter(written) - Counter(found), Counter(found) - Counter(written)
    assert (lost.total(), doubled.total()) == (0, 0), both.told(f"lost {list(lost)[:5]}, doubled {list(doubled)[:5]}")
    for one in writers:
        assert [event for event in found if event[1] // one.first_key == 1] == one.written, "in the order of commits"
    print(f"{wanted} changes in {rounds} rounds: 0 lost, 0 doubled")


@contextmanager
def handing_over(kafka: Any, folder: Path, libraries: Sequence[Path], topic: str) -> Iterator[HandedOver]:
    worker = Worker(folder, kafka.bootstrap, f"{topic.partition('.')[0]}-ours")
    try:
        worker.wait_ready()
        worker.wait(lambda: worker.get("/v1/cluster")["leader"], "a leader")
        with (
            GenuineConnect(folder / "connect", kafka.bootstrap, libraries) as connect,
            closing(HandedOver(worker, connect, topic)) as both,
        ):
            yield both
    finally:
        worker.kill()
