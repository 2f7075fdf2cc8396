"""Owners of tasks are frozen for twice the session and woken again: nothing that they still do may be seen.

Rows of both kinds of source carry consecutive numbers. An independent reader of committed records checks that none is
missing, none comes twice, and that the task epochs in the offsets log never fall.
"""

from __future__ import annotations

import json
import random
import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from .cluster import SESSION_S, Cluster, Worker, send, wait

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]

STARTED = re.compile(r"task started task=(\S+) pid=(\d+)")
FRAME_BYTES = 5
OFFSETS_PARTITIONS = 3
CATCH_UP_S = 90.0
WAYS = ("worker", "tree", "tree, tasks wake first", "tree, worker wakes first")


def long_of(data: bytes, at: int = FRAME_BYTES) -> int:
    """The Avro long at an index: seven bits a byte, lowest first, then zigzag."""
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return (number >> 1) ^ -(number & 1)
        at, shift = at + 1, shift + 7


@dataclass
class Ledger:
    """What has been seen: the last row of each topic, the last epoch of each task, and everything that was wrong."""

    rows: dict[str, int] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    owners: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def row(self, topic: str, number: int) -> None:
        last = self.rows.get(topic)
        if last is not None and number != last + 1:
            self.wrong.append(f"{topic}: row {number} after row {last}")
        self.rows[topic] = max(number, last or 0)

    def position(self, key: str, epoch: int) -> None:
        last = self.epochs.get(key, 0)
        if epoch < last:
            self.wrong.append(f"{key}: a position of task epoch {epoch} after one of {last}")
        elif epoch > last:
            self.owners[key] += 1
        self.epochs[key] = max(epoch, last)


class Reader(threading.Thread):
    """Reads the topics of all sources and the offsets log from their first offsets on."""

    def __init__(self, bootstrap: str, topics: list[str], offsets: str) -> None:
        super().__init__(name="reader", daemon=True)
        self.ledger = Ledger()
        self.error: BaseException | None = None
        self._offsets = offsets
        self._ending = threading.Event()
        settings = {"bootstrap.servers": bootstrap, "group.id": "zombies", "isolation.level": "read_committed"}
        self._consumer = Consumer({**settings, "enable.auto.commit": False, "fetch.wait.max.ms": 100})
        places = [TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in topics]
        places += [TopicPartition(offsets, number, OFFSET_BEGINNING) for number in range(OFFSETS_PARTITIONS)]
        self._consumer.assign(places)

    def run(self) -> None:
        try:
            while not self._ending.is_set():
                for message in self._consumer.consume(1_000, 0.05):
                    if message.error() is not None or message.key() is None:
                        continue
                    if message.topic() == self._offsets:
                        value = json.loads(message.value() or b"{}")
                        self.ledger.position(message.key().decode(), value.get("task_epoch", 0))
                    elif message.value() is not None:
                        self.ledger.row(message.topic(), long_of(message.key()))
        except Exception as exc:
            self.error = exc
            raise
        finally:
            self._consumer.close()

    def stop(self) -> None:
        self._ending.set()
        self.join(10)


class Writer(threading.Thread):
    """Consecutive rows into every table."""

    def __init__(self, dsn: str, tables: list[str]) -> None:
        super().__init__(name="writer", daemon=True)
        self.rows = 0
        self._dsn = dsn
        self._tables = tables
        self._ending = threading.Event()

    def run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._ending.wait(0.05):
                with connection.transaction():
                    for table in self._tables:
                        connection.execute(f"insert into {table} values ({self.rows + 1})")
                self.rows += 1

    def stop(self) -> None:
        self._ending.set()
        self.join(10)


class Field:
    """A cluster with sources of both kinds, the load, and the reader."""

    def __init__(self, cluster: Cluster, workers: int, pairs: int) -> None:
        self.cluster = cluster
        for _ in range(workers):
            cluster.start_worker(offset_storage_partitions=str(OFFSETS_PARTITIONS))
        tables = [f"z{number}" for number in range(pairs)]
        with psycopg.connect(cluster.postgres.dsn(cluster.source_db), autocommit=True) as connection:
            for table in tables:
                connection.execute(f"create table {table} (id bigint primary key)")
        self.topics: dict[str, str] = {}
        for number, table in enumerate(tables):
            prefix = f"{cluster.group}-{number}"
            self._add(f"pg{number}", self._postgres(prefix, table), f"{prefix}.public.{table}")
            generated = {"connector.class": "datagen", "topic.prefix": f"{prefix}-gen", "rows.per.second": "20"}
            self._add(f"gen{number}", generated, f"{prefix}-gen.task0.rows")
        wait("all sources", lambda: len(self.owners()) == len(self.topics), 60)
        self.writer = Writer(cluster.postgres.dsn(cluster.source_db), tables)
        self.writer.start()
        admin = AdminClient({"bootstrap.servers": cluster.kafka.bootstrap})
        wait("data topics", lambda: set(self.topics.values()) <= set(admin.list_topics(timeout=10).topics), 60)
        self.reader = Reader(cluster.kafka.bootstrap, list(self.topics.values()), f"{cluster.group}.offsets")
        self.reader.start()

    def _add(self, name: str, config: dict[str, str], topic: str) -> None:
        self.cluster.submit(name, config)
        self.topics[name] = topic

    def _postgres(self, prefix: str, table: str) -> dict[str, str]:
        slot = prefix.replace("-", "_")
        return {
            "connector.class": "postgres",
            **self.cluster.connection("database", self.cluster.source_db),
            "topic.prefix": prefix,
            "slot.name": slot,
            "publication.name": slot,
            "table.include.list": f"public.{table}",
            "snapshot.mode": "no_data",
        }

    def owners(self) -> dict[str, tuple[str, int]]:
        """Worker and task epoch of each running task."""
        tasks = self.cluster.cluster()["tasks"]
        assert not [task for task in tasks if task["state"] == "FAILED"], tasks
        return {task["connector"]: (task["worker"], task["epoch"]) for task in tasks if task["state"] == "RUNNING"}

    def is_calm(self) -> bool:
        """Whether each worker is said to run tasks, and has their processes."""
        workers, owners = self.cluster.workers, self.owners()
        if len(owners) != len(self.topics) or {worker for worker, _ in owners.values()} != set(workers):
            return False
        return all(self.processes(worker) for worker in workers.values())

    def processes(self, worker: Worker) -> list[int]:
        """Its tasks' processes, as its log names them: a task lives in a session of its own."""
        started = dict(STARTED.findall((self.cluster.directory / f"{worker.id}.log").read_text(errors="replace")))
        held = {f"{name}-0" for name, (owner, _) in self.owners().items() if owner == worker.id}
        return [int(pid) for task, pid in started.items() if task in held and Path(f"/proc/{pid}").exists()]

    def freeze(self, worker: Worker, way: str) -> tuple[list[int], list[int]]:
        """What is stopped now, in the two parts in which it is to wake."""
        tasks = self.processes(worker)
        assert tasks
        parts = {
            "worker": ([worker.pid], []),
            "tree": (worker.tree(), []),
            "tree, tasks wake first": (tasks, [pid for pid in worker.tree() if pid not in tasks]),
            "tree, worker wakes first": ([worker.pid], [pid for pid in worker.tree() if pid != worker.pid]),
        }[way]
        send([*parts[0], *parts[1]], signal.SIGSTOP)
        return parts

    def stop(self) -> None:
        self.writer.stop()
        self.reader.stop()


def haunt(field_: Field, rnd: random.Random, victims: int) -> int:
    """Freeze some workers for twice the session and wake them; how many tasks changed hands meanwhile."""
    wait("every worker runs tasks", field_.is_calm, CATCH_UP_S, 0.3)
    before = field_.owners()
    chosen = rnd.sample(sorted(field_.cluster.workers), victims)
    others = {name: worker for name, worker in field_.cluster.workers.items() if name not in chosen}
    lost = {name: epoch for name, (worker, epoch) in before.items() if worker in chosen}
    everybody, rest = field_.cluster.workers, threading.Event()
    parts = [field_.freeze(everybody[name], rnd.choice(WAYS)) for name in chosen]
    try:
        field_.cluster.workers = others
        rest.wait(2 * SESSION_S)
        wait("new owners", lambda: all(field_.owners().get(n, ("", 0))[1] > e for n, e in lost.items()), CATCH_UP_S)
    finally:
        for first, _ in parts:
            send(first, signal.SIGCONT)
        rest.wait(rnd.uniform(0, 0.5))
        for _, second in parts:
            send(second, signal.SIGCONT)
        field_.cluster.workers = everybody
    return len(lost)


@pytest.fixture
def cluster(kafka, postgres, tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(kafka, postgres, tmp_path)
    try:
        yield found
    finally:
        found.stop()


def run(cluster: Cluster, seed: int, size: tuple[int, int, int], trials: int) -> None:
    workers, pairs, victims = size
    field_, done, rnd = Field(cluster, workers, pairs), 0, random.Random(seed)
    ledger = field_.reader.ledger
    try:
        while done < trials:
            done += haunt(field_, rnd, victims)
            print(f"{done} zombies, {sum(ledger.rows.values())} rows, {len(ledger.wrong)} wrong", flush=True)
            assert ledger.wrong == []
        wait("every worker runs tasks", field_.is_calm, CATCH_UP_S, 0.3)
        written, made = field_.writer.rows, dict(ledger.rows)

        def delivered() -> bool:
            tables = [topic for name, topic in field_.topics.items() if name.startswith("pg")]
            generated = [topic for name, topic in field_.topics.items() if name.startswith("gen")]
            return all(ledger.rows.get(t, 0) >= written for t in tables) and all(
                ledger.rows.get(t, 0) > made.get(t, 0) for t in generated
            )

        wait("every row arrives", delivered, CATCH_UP_S)
        owners = done + len(field_.topics)
        wait("the epochs of the new owners are seen", lambda: sum(ledger.owners.values()) >= owners, CATCH_UP_S)
    finally:
        field_.stop()
    assert field_.reader.error is None
    assert ledger.wrong == []


@pytest.mark.timeout(240)
def test_a_few_woken_owners_leave_no_stale_record(cluster: Cluster, request) -> None:
    run(cluster, int(request.config.getoption("randomly_seed", None) or 1), (3, 2, 1), trials=2)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_hundred_woken_owners_leave_no_stale_record(cluster: Cluster, request) -> None:
    run(cluster, int(request.config.getoption("randomly_seed", None) or 1), (5, 6, 2), trials=100)


def test_the_ledger_knows_a_stale_record() -> None:
    """Without this the check could be blind."""
    ledger = Ledger()
    for number in (1, 2, 3):
        ledger.row("t", number)
    ledger.position("k", 7)
    ledger.position("k", 8)
    assert ledger.wrong == []
    ledger.row("t", 3)
    ledger.row("t", 5)
    ledger.position("k", 7)
    assert len(ledger.wrong) == 3
