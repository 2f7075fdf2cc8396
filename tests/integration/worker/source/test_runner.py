"""Source tasks as real processes on a real broker: killed at any step, nothing is lost and nothing comes twice."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

import pytest
from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.kafka.compacted_log import KafkaCompactedLog
from cdcworker.coordinator.kafka.internal_topics import TopicNames, ensure_topics, internal_topics
from cdcworker.coordinator.log.config_fold import assignment_record, connector_record, leader_record, task_set_record
from cdcworker.coordinator.log.offset_records import parse_offset_value
from cdcworker.coordinator.model import AssignedTask, Assignment, Connector, Leader, TaskSet
from cdcworker.schemas.decode import RecordDecoder
from cdcworker.schemas.log import SchemaLog
from cdcworker.worker.producers.transactional import TransactionalProducer
from cdcworker.worker.protocol.task_spec import DATA_IDS, ClusterTopics, TaskSpec
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from . import scripted_child

pytestmark = pytest.mark.kafka

SCRIPT = Path(__file__).with_name("scripted_child.py")
EPOCH = 1 << 20
DEADLINE_S = 120.0
POINTS = ("source.before_produce", "source.before_commit", "source.after_commit", "source.before_ack")


class Child:
    """One task process, spoken to as its worker would."""

    def __init__(self, spec: TaskSpec, failpoints: str = "") -> None:
        env = {**os.environ, "CDC_FAILPOINTS": failpoints}
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            start_new_session=True,
        )
        self.messages: list[dict] = []
        self.log = b""
        self._readers = [threading.Thread(target=self._read), threading.Thread(target=self._read_log)]
        for reader in self._readers:
            reader.start()
        self.process.stdin.write(spec.to_line())
        self.say(type="lease", valid_s=0.6 * spec.session_timeout_s, takes_turns=True)

    def _read(self) -> None:
        for line in self.process.stdout:
            self.messages.append(json.loads(line))

    def _read_log(self) -> None:
        for line in self.process.stderr:
            self.log += line

    def say(self, **message) -> None:
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def states(self) -> list[str]:
        return [message["state"] for message in self.messages if message["type"] == "status"]

    def wait_for(self, condition, what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"not in time: {what}\n{self.log.decode()}"
            assert self.process.poll() is None, f"ended while waiting: {what}\n{self.log.decode()}"
            select.select([], [], [], 0.01)

    def at(self, lsn: int) -> bool:
        positions = [message.get("position") for message in self.messages if message["type"] == "metrics"]
        return bool(positions) and positions[-1] == {"lsn": lsn}

    def stop(self) -> int:
        self.say(type="stop")
        return self.join()

    def join(self) -> int:
        code = self.process.wait(DEADLINE_S)
        self.close()
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for reader in self._readers:
            reader.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            # What it has not read of what was said to it goes nowhere.
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class Cluster:
    """The logs of one group, written as its leader would write them."""

    def __init__(self, bootstrap: str) -> None:
        self.group = f"g{uuid.uuid4().hex[:8]}"
        self.kafka = {"bootstrap.servers": bootstrap}
        self.names = TopicNames.of_group(self.group)
        ensure_topics(self.kafka, internal_topics(self.names), client_id="test", replication_factor=1)
        self.configs = KafkaCompactedLog(self.kafka, self.names.configs, client_id="test-configs")
        self.prefix = f"p{self.group}"
        self.children: list[Child] = []

    def assign(self, epoch: int = EPOCH, boot_id: str = "boot", tasks: int = 1) -> None:
        connector = Connector("shop", "inc", 1, {"connector.class": "scripted"}, "RUNNING", "source")
        entries = tuple(AssignedTask("shop", "inc", number, epoch) for number in range(tasks))
        records = [
            leader_record(Leader(1, "w", "boot", "")),
            connector_record(connector),
            task_set_record("shop", TaskSet("inc", 1, ({},) * tasks)),
            assignment_record("w", Assignment(boot_id, entries)),
        ]
        stamped = [LogRecord(record.key, record.value, {"e": "1", "w": "w", "v": "1"}) for record in records]
        self.configs.append(stamped, 10.0)

    def spec(self, transactions: int, epoch: int = EPOCH, **config: str) -> TaskSpec:
        names = {key.replace("_", "."): text for key, text in config.items()}
        return TaskSpec(
            kind="source",
            connector="shop",
            task=0,
            incarnation="inc",
            task_epoch=epoch,
            attempt=0,
            worker_id="w",
            boot_id="boot",
            paused=False,
            config={
                "connector.class": "scripted",
                "topic.prefix": self.prefix,
                "topic.creation.default.partitions": "3",
                "scripted.transactions": str(transactions),
                **names,
            },
            kafka=self.kafka,
            group_id=self.group,
            topics=ClusterTopics(self.names.configs, self.names.offsets, self.names.status, self.names.schemas),
            offsets_partitions=25,
            session_timeout_s=600.0,
            state_dir="",
        )

    def child(self, spec: TaskSpec, failpoints: str = "") -> Child:
        self.children.append(Child(spec, failpoints))
        return self.children[-1]

    def schemas(self) -> SchemaLog:
        log = KafkaCompactedLog(self.kafka, self.names.schemas, client_id="test-schemas")
        view = SchemaLog((record.key, record.value) for record in log.read_to_end(30.0))
        log.close()
        return view

    def read(self, topic: str, isolation: str = "read_committed") -> list[tuple[int, bytes, bytes]]:
        """(partition, key, value) of everything in a topic, in partition order."""
        consumer = Consumer(
            {
                **self.kafka,
                "group.id": "test-reader",
                "isolation.level": isolation,
                "enable.partition.eof": True,
                "enable.auto.commit": False,
            }
        )
        numbers = list(consumer.list_topics(topic, 10.0).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in numbers])
        found, ended = [], set()
        deadline = time.monotonic() + DEADLINE_S
        while len(ended) < len(numbers):
            assert time.monotonic() < deadline
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error() is None:
                found.append((message.partition(), message.key(), message.value()))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
        consumer.close()
        return found

    def rows(self) -> dict[str, list[dict]]:
        """Decoded envelopes per table, in the order of each partition."""
        decoder = RecordDecoder(self.schemas())
        return {
            name: [decoder.decode(value) for _, _, value in self.read(f"{self.prefix}.public.{name}")]
            for name in ("a", "bb")
        }

    def position(self) -> dict | None:
        log = KafkaCompactedLog(self.kafka, self.names.offsets, client_id="test-offsets")
        records = log.read_to_end(DEADLINE_S)
        log.close()
        return parse_offset_value(records[-1].value).position if records else None

    def close(self) -> None:
        for child in self.children:
            child.close()
        self.configs.close()


@pytest.fixture
def cluster(kafka) -> Iterator[Cluster]:
    made = Cluster(kafka.bootstrap)
    made.assign()
    yield made
    made.close()


def assert_exactly_once(cluster: Cluster, transactions: int, wide_from: int = 1_000_000_000) -> None:
    wanted: dict[str, list[str]] = {"a": [], "bb": []}
    per_key: dict[tuple[str, int], list[str]] = {}
    for lsn in range(1, transactions + 1):
        for change in CHANGES(lsn, wide_from):
            wanted[change.table.path[1]].append(change.after[1])
            per_key.setdefault((change.table.path[1], change.after[0]), []).append(change.after[1])
    rows = cluster.rows()
    for name, notes in wanted.items():
        got = [row["after"]["note"] for row in rows[name]]
        assert sorted(got) == sorted(notes), name
    for (name, key), notes in per_key.items():
        assert [row["after"]["note"] for row in rows[name] if row["after"]["id"] == key] == notes


CHANGES = scripted_child.changes


def test_a_source_task_delivers_everything_and_stops_when_told(cluster):
    child = cluster.child(cluster.spec(300, scripted_wide_from="100"))
    child.wait_for(lambda: child.at(300), "the last position")
    assert child.stop() == 0
    assert child.states() == ["RUNNING", "STOPPED"]
    topics = {name for message in child.messages if message["type"] == "topics" for name in message["topics"]}
    assert topics == {f"{cluster.prefix}.public.a", f"{cluster.prefix}.public.bb", f"{cluster.prefix}.watermark"}
    assert_exactly_once(cluster, 300, 100)
    assert cluster.position() == {"lsn": 300}
    marks = [json.loads(value)["commit_lsn"] for _, _, value in cluster.read(f"{cluster.prefix}.watermark")]
    assert marks == sorted(marks)
    assert marks[-1] == 300
    assert len(cluster.schemas().versions(f"{cluster.prefix}.public.a-value")) == 2


def test_killed_at_every_step_again_and_again_nothing_is_lost_or_doubled(cluster):
    killed_at(cluster, zip(POINTS, (1, 4, 1, 4), strict=True))


@pytest.mark.long
def test_killed_at_the_first_and_a_later_pass_of_every_step_nothing_is_lost_or_doubled(cluster):
    killed_at(cluster, product(POINTS, (1, 4)))


def killed_at(cluster: Cluster, passes: Iterable[tuple[str, int]]) -> None:
    spec = cluster.spec(240, scripted_wide_from="120")
    for point, count in passes:
        child = cluster.child(spec, f"{point}=kill@{count}")
        assert child.join() == -signal.SIGKILL, child.log.decode()
    child = cluster.child(spec)
    child.wait_for(lambda: child.at(240), "the last position")
    assert child.stop() == 0
    assert_exactly_once(cluster, 240, 120)


def test_a_process_that_is_taken_over_ends_as_fenced_and_has_written_nothing_more(cluster):
    child = cluster.child(cluster.spec(40))
    child.wait_for(lambda: child.at(40), "the last position")
    cluster.assign(EPOCH + 1, "another boot")
    others = [
        TransactionalProducer(
            cluster.kafka, make(cluster.group, "shop", 0), client_id="other", transaction_timeout_ms=10_000
        )
        for make in DATA_IDS
    ]
    assert child.join() == 3
    assert child.states() == ["RUNNING"]
    for other in others:
        other.close()
    assert_exactly_once(cluster, 40)


@pytest.mark.parametrize("make", DATA_IDS)
def test_a_rightful_owner_that_is_fenced_by_a_zombie_goes_on(cluster, make):
    child = cluster.child(cluster.spec(100_000, scripted_pause_ms="20"))
    child.wait_for(lambda: "RUNNING" in child.states(), "running")
    zombie = TransactionalProducer(
        cluster.kafka, make(cluster.group, "shop", 0), client_id="zombie", transaction_timeout_ms=10_000
    )
    child.wait_for(lambda: child.states().count("RUNNING") == 2, "running again")
    zombie.close()
    at_fence = cluster.position()
    child.wait_for(lambda: cluster.position() != at_fence, "progress after the fence")
    assert child.stop() == 0
    assert_exactly_once(cluster, cluster.position()["lsn"])


def test_a_start_that_is_not_assigned_touches_nothing(cluster):
    child = cluster.child(cluster.spec(10, epoch=EPOCH - 1))
    assert child.join() == 3
    assert child.states() == []
    assert cluster.position() is None


def test_pause_and_resume_keep_the_order(cluster):
    child = cluster.child(cluster.spec(100_000, scripted_pause_ms="20"))
    child.wait_for(lambda: "RUNNING" in child.states(), "running")
    child.say(type="pause")
    child.wait_for(lambda: "PAUSED" in child.states(), "paused")
    at_pause = cluster.position()
    child.say(type="resume")
    child.wait_for(lambda: child.states() == ["RUNNING", "PAUSED", "RUNNING"], "running again")
    child.wait_for(lambda: cluster.position() != at_pause, "progress")
    assert child.stop() == 0
    assert_exactly_once(cluster, cluster.position()["lsn"])


def test_without_a_lease_the_task_falls_silent_and_goes_on_with_one(cluster):
    spec = cluster.spec(100_000, scripted_pause_ms="20")
    data = {**spec.to_json(), "session_timeout_s": 3.0}
    child = cluster.child(TaskSpec.from_json(data))
    child.wait_for(lambda: b"lease has lapsed" in child.log, "silence")
    before = cluster.position()
    assert cluster.position() == before
    child.say(type="lease", valid_s=60)
    child.wait_for(lambda: child.states().count("RUNNING") == 2, "running again")
    child.wait_for(lambda: cluster.position() != before, "progress")
    assert child.stop() == 0
    assert_exactly_once(cluster, cluster.position()["lsn"])


def test_when_the_worker_is_gone_the_task_ends_at_once(cluster):
    child = cluster.child(cluster.spec(10))
    child.wait_for(lambda: child.at(10), "the last position")
    child.process.stdin.close()
    assert child.process.wait(DEADLINE_S) == -signal.SIGKILL


def test_a_broker_that_restarts_is_survived(kafka, cluster):
    child = cluster.child(cluster.spec(300, scripted_pause_ms="20"))
    child.wait_for(lambda: "RUNNING" in child.states(), "running")
    kafka.restart()
    child.wait_for(lambda: child.at(300), "the last position")
    assert child.stop() == 0
    assert_exactly_once(cluster, 300)


def test_a_wrong_config_is_a_named_failure(cluster):
    child = cluster.child(cluster.spec(10, batch_commit_ms_max="soon"))
    assert child.join() == 1
    status = child.messages[-1]
    assert status["state"] == "FAILED"
    assert status["error"]["code"] == "config.invalid"
    assert "batch.commit.ms.max" in status["error"]["message"]
