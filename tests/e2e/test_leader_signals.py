"""Leaders are paused, woken and killed at random while they write; whatever a deposed one wrote must not be seen.

An independent reader follows the config logs, committed records only: from the first record of an epoch on, no record
of a lower one may come, and every record is its epoch's claimant's.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cdcworker.coordinator.kafka.internal_topics import TopicNames, ensure_topics, internal_topics
from cdcworker.worker.devstack.kafka import QUICK_COMPILER_ONLY, EmbeddedKafka
from cdcworker.worker.devstack.process import Program
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from .cluster import wait

pytestmark = [pytest.mark.kafka]

CHILD = Path(__file__).with_name("leader_child.py")
SESSION_S = 2.0
WORKERS = 3
TAKEOVER_S = 60.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory) -> Iterator[EmbeddedKafka]:
    """One of its own, that takes sessions shorter than a broker does by default."""
    settings = {"group.min.session.timeout.ms": "1000"}
    found = EmbeddedKafka(tmp_path_factory.mktemp("broker"), settings, heap="384m", jvm_options=QUICK_COMPILER_ONLY)
    found.start()
    try:
        yield found
    finally:
        found.remove()


@dataclass
class Witness:
    """What a reader of one config log has seen."""

    epoch: int = 0
    owner: str = ""
    boot: str = ""
    records: int = 0
    epochs: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def take(self, offset: int, key: str, headers: dict[str, str], value: Any) -> None:
        epoch, writer = int(headers["e"]), headers["w"]
        self.records += 1
        if epoch < self.epoch:
            self.violations.append(f"offset {offset}: {key} of epoch {epoch} by {writer} after epoch {self.epoch}")
        elif epoch > self.epoch:
            if key != "leader" or value["epoch"] != epoch:
                self.violations.append(f"offset {offset}: epoch {epoch} begins with {key}")
                return
            self.epoch, self.owner, self.boot = epoch, writer, value["boot_id"]
            self.epochs[writer] += 1
        elif writer != self.owner or not headers.get("b", self.boot).startswith(self.boot):
            self.violations.append(f"offset {offset}: {key} of epoch {epoch} by {writer}, which is {self.owner}'s")


class Reader(threading.Thread):
    """Follows the config logs of all groups."""

    def __init__(self, bootstrap: str, groups: list[str]) -> None:
        super().__init__(name="witness", daemon=True)
        self.seen = {TopicNames.of_group(group).configs: Witness() for group in groups}
        self.error: BaseException | None = None
        self._ending = threading.Event()
        settings = {"bootstrap.servers": bootstrap, "group.id": "witness", "isolation.level": "read_committed"}
        self._consumer = Consumer({**settings, "enable.auto.commit": False, "fetch.wait.max.ms": 50})
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in self.seen])

    def run(self) -> None:
        try:
            while not self._ending.is_set():
                for message in self._consumer.consume(500, 0.05):
                    if message.error() is None:
                        headers = {name: bytes(text or b"").decode() for name, text in message.headers() or ()}
                        value = json.loads(message.value()) if message.value() else None
                        self.seen[message.topic()].take(message.offset(), message.key().decode(), headers, value)
        except Exception as exc:
            self.error = exc
            raise
        finally:
            self._consumer.close()

    def stop(self) -> None:
        self._ending.set()
        self.join(10)


class Group(threading.Thread):
    """Workers of one group and the faults that befall its leaders, one round after the other."""

    def __init__(self, broker: EmbeddedKafka, group: str, witness: Witness, rnd: random.Random, folder: Path) -> None:
        super().__init__(name=group, daemon=True)
        self.group = group
        self.rounds_left = 0
        self.done: Counter[str] = Counter()
        self.error: BaseException | None = None
        self._broker = broker
        self._witness = witness
        self._random = rnd
        self._folder = folder
        self.workers = {f"w{n}": self._launch(f"w{n}") for n in range(WORKERS)}

    def _launch(self, worker: str) -> Program:
        argv = [sys.executable, str(CHILD), self._broker.bootstrap, self.group, worker, str(SESSION_S)]
        return Program(worker, argv, self._folder / f"{self.group}-{worker}.log")

    def run(self) -> None:
        try:
            while self.rounds_left > 0:
                self._round()
                self.rounds_left -= 1
            # Here, since a process ends with the thread that has started it.
            self._writing_leader()
        except BaseException as exc:
            self.error = exc
            raise

    def _round(self) -> None:
        """A fault that is shorter or longer than the session; then somebody must lead and write."""
        leader = self._writing_leader()
        child, fault = self.workers[leader], self._random.choice(["kill", "pause", "long pause", "blinks"])
        self.done[fault] += 1
        if fault == "kill":
            child.kill()
            self._rest(self._random.uniform(0, 2 * SESSION_S))
            self.workers[leader] = self._launch(leader)
        else:
            shares = {"pause": (0.1, 1.1), "long pause": (1.1, 2.5), "blinks": (0.01, 0.2)}[fault]
            for _ in range(5 if fault == "blinks" else 1):
                child.send(signal.SIGSTOP)
                self._rest(self._random.uniform(*shares) * SESSION_S)
                child.send(signal.SIGCONT)

    def _rest(self, seconds: float) -> None:
        threading.Event().wait(seconds)

    def _writing_leader(self) -> str:
        seen = self._witness
        epoch, records = seen.epoch, seen.records

        def writes() -> bool:
            nonlocal epoch, records
            if seen.epoch != epoch:
                epoch, records = seen.epoch, seen.records
            alive = seen.owner in self.workers and self.workers[seen.owner].alive()
            return alive and seen.records >= records + 3

        wait(f"a leader of {self.group} that writes", writes, TAKEOVER_S, 0.02)
        return seen.owner

    def end(self) -> None:
        for child in self.workers.values():
            child.kill()


def torment(broker: EmbeddedKafka, folder: Path, seed: int, groups: int, rounds: int) -> None:
    """`rounds` faults in all, the groups side by side."""
    properties = {"bootstrap.servers": broker.bootstrap}
    names = [f"signals-{os.getpid()}-{time.time_ns() % 1_000_000_007}-{n}" for n in range(groups)]
    for name in names:
        specs = internal_topics(TopicNames.of_group(name), offsets_partitions=1, status_partitions=1)
        ensure_topics(properties, specs, client_id="test", replication_factor=1)
    reader = Reader(broker.bootstrap, names)
    reader.start()
    found: list[Group] = []
    try:
        for number, name in enumerate(names):
            witness = reader.seen[TopicNames.of_group(name).configs]
            found.append(Group(broker, name, witness, random.Random(seed * 1_000 + number), folder))
        for group in found:
            group.rounds_left = -(-rounds // groups)
            group.start()
        for group in found:
            group.join()
        assert [group.error for group in found if group.error] == []
    finally:
        for group in found:
            group.end()
        reader.stop()
    assert reader.error is None
    print_result(found, reader)
    assert {name: seen.violations for name, seen in reader.seen.items() if seen.violations} == {}


def print_result(found: list[Group], reader: Reader) -> None:
    faults = sum((group.done for group in found), Counter())
    epochs = sum(seen.epoch for seen in reader.seen.values())
    records = sum(seen.records for seen in reader.seen.values())
    print(f"faults {dict(faults)}, {epochs} epochs, {records} records, all in order")


def seed_of(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("randomly_seed", None) or 1)


@pytest.mark.timeout(180)
def test_twelve_faults_of_leaders_leave_no_stale_write(broker: EmbeddedKafka, tmp_path: Path, request) -> None:
    torment(broker, tmp_path, seed_of(request), groups=3, rounds=12)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_five_hundred_faults_of_leaders_leave_no_stale_write(broker: EmbeddedKafka, tmp_path: Path, request) -> None:
    torment(broker, tmp_path, seed_of(request), groups=6, rounds=504)


def test_the_witness_knows_a_stale_write() -> None:
    """Without this the check could be blind."""
    seen = Witness()
    claim = {"epoch": 1, "boot_id": "b1"}
    seen.take(0, "leader", {"e": "1", "w": "w0", "b": "b1:1"}, claim)
    seen.take(1, "connector/a", {"e": "1", "w": "w0", "b": "b1:2"}, {})
    seen.take(2, "leader", {"e": "2", "w": "w1", "b": "b2:1"}, {"epoch": 2, "boot_id": "b2"})
    assert seen.violations == []
    seen.take(3, "connector/a", {"e": "1", "w": "w0", "b": "b1:3"}, {})
    seen.take(4, "connector/a", {"e": "2", "w": "w0", "b": "b1:3"}, {})
    seen.take(5, "connector/a", {"e": "2", "w": "w1", "b": "b3:1"}, {})
    seen.take(6, "connector/a", {"e": "3", "w": "w1", "b": "b2:1"}, {})
    assert len(seen.violations) == 4
