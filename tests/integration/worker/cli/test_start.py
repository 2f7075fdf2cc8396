"""`cdcworker start` as a person runs it: one worker, a PostgreSQL source, signals and exit codes."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest
from cdcworker.coordinator.kafka.compacted_log import KafkaCompactedLog
from cdcworker.schemas.decode import RecordDecoder
from cdcworker.schemas.log import SchemaLog
from cdcworker.worker.devstack.ports import free_ports
from cdcworker.worker.rest.resources.monitoring.metric_table import SOURCE
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from tests import plain_http

pytestmark = pytest.mark.kafka

DEADLINE_S = 60.0


class Worker:
    """One `cdcworker start` process."""

    def __init__(self, folder: Path, bootstrap: str, group: str, **env: str) -> None:
        (self.port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        path = folder / "worker.properties"
        path.write_text(
            f"bootstrap.servers={bootstrap}\ngroup.id={group}\nlisteners={self.url}\nworker.id=w1\n"
            "session.timeout.ms=6000\noffset.storage.replication.factor=1\noffset.storage.partitions=3\n"
        )
        self.log = folder / "worker.log"
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [str(Path(sys.executable).with_name("cdcworker")), "start", "--config", str(path)],
                stdout=out,
                stderr=out,
                env={**os.environ, **env},
            )

    def get(self, path: str):
        return plain_http.get(self.url + path, timeout=30.0).json()

    def wait(self, condition, what: str):
        deadline = time.monotonic() + DEADLINE_S
        while True:
            assert self.process.poll() is None, self.log.read_text()
            try:
                found = condition()
            except (httpx.HTTPError, KeyError, IndexError, ValueError):
                found = None
            if found:
                return found
            assert time.monotonic() < deadline, f"not in time: {what}\n{self.log.read_text()}"
            select.select([], [], [], 0.05)

    def wait_ready(self) -> None:
        self.wait(lambda: self.get("/health")["status"] == "healthy", "health")

    def put(self, name, config):
        """Tried again while there is no leader: a worker is healthy a moment before one is elected."""

        def answered():
            answer = plain_http.put(f"{self.url}/connectors/{name}/config", json=config, timeout=30.0)
            return None if answer.status_code == 409 else answer

        answer = self.wait(answered, "a leader")
        assert answer.status_code == 201, answer.text

    def end(self, *signals: int) -> tuple[int, float]:
        """(exit code, seconds)"""
        started = time.monotonic()
        for number in signals:
            self.process.send_signal(number)
        return self.process.wait(DEADLINE_S), time.monotonic() - started

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


SOMETIMES = {
    "cdc_slot_safe_bytes",
    "cdc_slot_lost_in_seconds",
    "cdc_slot_failover_ready",
    "cdc_source_lag_transactions",
    "cdc_binlog_bytes",
    "cdc_binlog_expires_in_seconds",
    "cdc_source_filtered_records_total",
} | {f"cdc_snapshot_{part}" for part in ("rows_total", "tables_left", "tables_loaded", "left_seconds")}
"""Metrics of a source that need a limit, a danger, a server of today, a transform that leaves records out, or rows to load."""


def shown(worker) -> dict[str, float]:
    families = text_string_to_metric_families(plain_http.get(worker.url + "/metrics", timeout=30.0).text)
    return {sample.name: sample.value for family in families for sample in family.samples}


@pytest.fixture
def start(kafka, tmp_path) -> Iterator:
    started: list[Worker] = []
    group = f"w{uuid.uuid4().hex[:8]}"

    def make(**env: str) -> Worker:
        started.append(Worker(tmp_path, kafka.bootstrap, group, **env))
        return started[-1]

    make.group = group
    yield make
    for worker in started:
        worker.kill()


@pytest.mark.sampled(2, "starts")
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_worker_comes_up_and_ends_when_told(start, number):
    worker = start()
    worker.wait_ready()
    assert worker.get("/")["version"]
    worker.wait(lambda: worker.get("/connectors") == [], "a leader")
    code, seconds = worker.end(number)
    assert code == 0
    assert seconds < 20
    assert "Traceback" not in worker.log.read_text()


@pytest.mark.sampled(2, "starts")
def test_a_worker_that_is_told_before_it_is_up_ends_too(start):
    worker = start(CDC_BOOTSTRAP_SERVERS="127.0.0.1:1")
    worker.wait(lambda: plain_http.get(worker.url + "/health").status_code == 503, "starting")
    code, seconds = worker.end(signal.SIGTERM)
    assert code in (0, 3)
    assert seconds < 20


@pytest.mark.sampled(2, "starts")
def test_without_kafka_it_ends_with_one_named_error_and_code_3(start):
    worker = start(CDC_BOOTSTRAP_SERVERS="127.0.0.1:1")
    assert worker.process.wait(DEADLINE_S) == 3
    text = worker.log.read_text()
    assert text.count("Error: [kafka.unreachable]") == 1
    assert "Traceback" not in text
    assert len(text.splitlines()) < 20


@pytest.mark.sampled(2, "starts")
def test_a_port_in_use_is_a_named_error(start, tmp_path):
    first = start()
    first.wait_ready()
    second = start(CDC_LISTENERS=first.url)
    assert second.process.wait(DEADLINE_S) in (1, 2, 3)
    assert str(first.port) in second.log.read_text()
    assert "Traceback" not in second.log.read_text()


def connector(dsn: str, prefix: str) -> dict[str, str]:
    parts = urlsplit(dsn)
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "topic.prefix": prefix,
        "database.hostname": str(parts.hostname),
        "database.port": str(parts.port),
        "database.user": str(parts.username),
        "database.password": "${env:SHOP_PASSWORD}",
        "database.dbname": parts.path.lstrip("/"),
        "table.include.list": "public.item",
        "topic.creation.default.partitions": "2",
        "topic.creation.default.replication.factor": "1",
    }


def read(bootstrap: str, topic: str, schemas: Callable[[], SchemaLog]) -> list[tuple[str, int, int]]:
    """(op, id, qty) of every committed change of the topic, by partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "t", "enable.partition.eof": True})
    numbers = list(consumer.list_topics(topic, 10.0).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in numbers])
    values, ended = [], set()
    while len(ended) < len(numbers):
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            ended.add(message.partition())
        elif message.value() is not None:
            values.append(message.value())
    consumer.close()
    decoder = RecordDecoder(schemas())  # read after the records: a schema is in its log before the first of them
    changes = [decoder.decode(value) for value in values]
    rows = [change["after"] or change["before"] for change in changes]
    return [(change["op"], row["id"], row["qty"]) for change, row in zip(changes, rows, strict=True)]


@pytest.mark.sampled(2, "starts")
def test_a_worker_denies_nothing_from_its_first_connection_on(start):
    first = start()
    first.wait_ready()
    config = {"connector.class": "datagen", "topic.prefix": f"p{start.group}", "tasks.max": "1"}

    def created():
        return plain_http.post(
            f"{first.url}/connectors", json={"name": "gen", "config": config, "initial_state": "STOPPED"}
        )

    assert first.wait(lambda: (answer := created()).status_code != 409 and answer, "a leader").status_code == 201
    assert first.end(signal.SIGTERM)[0] == 0
    second, answers = start(), []
    paths = ("/connectors", "/connectors/gen", "/connectors/gen/config", "/connectors/gen/status", "/v1/connectors")

    def all_told():
        for path in paths:
            answer = plain_http.get(second.url + path, timeout=30.0)
            answers.append((path, answer.status_code, answer.json()))
        return all(status == 200 for _, status, _ in answers[-len(paths) :])

    second.wait(all_told, "answers")
    refused = {status for _, status, _ in answers} - {200}
    assert refused <= {503}
    assert [] not in [content for _, _, content in answers]
    # The socket is open before the logs are read, so the first answer has waited for them or told of the start.
    assert "gen" in json.dumps([content for path, status, content in answers if (path, status) == ("/connectors", 200)])


@pytest.mark.sampled(2, "starts")
@pytest.mark.postgres
def test_a_source_delivers_survives_a_killed_worker_and_is_handed_over_at_the_end(kafka, postgres, start):
    dsn = postgres.dsn(postgres.create_database())
    with psycopg.connect(dsn, autocommit=True) as database:
        database.execute("create table item (id int primary key, qty int not null)")
        database.execute("insert into item select i, 0 from generate_series(1, 100) i")
        env = {"SHOP_PASSWORD": str(urlsplit(dsn).password)}
        worker = start(**env)
        worker.wait_ready()
        prefix = f"p{start.group}"
        worker.put("shop", connector(dsn, prefix))
        worker.wait(lambda: worker.get("/connectors/shop/status")["tasks"][0]["state"] == "RUNNING", "running")
        schema_log = KafkaCompactedLog({"bootstrap.servers": kafka.bootstrap}, f"{start.group}.schemas", client_id="t")

        def schemas() -> SchemaLog:
            view.extend((record.key, record.value) for record in schema_log.read_to_end(10.0))
            return SchemaLog(view)

        view: list = []
        topic = f"{prefix}.public.item"
        worker.wait(lambda: len(read(kafka.bootstrap, topic, schemas)) >= 100, "the snapshot")
        for number in range(1, 51):
            database.execute("update item set qty = %s where id = %s", (number, number % 10 + 1))
        worker.wait(lambda: len(read(kafka.bootstrap, topic, schemas)) >= 150, "the updates")
        worker.kill()
        database.execute("update item set qty = qty + 1000")
        second = start(**env)
        second.wait_ready()
        second.wait(lambda: len(read(kafka.bootstrap, topic, schemas)) >= 250, "rows after the kill")
        assert second.get("/connectors/shop/status")["tasks"][0]["state"] == "RUNNING"
        assert topic in json.dumps(second.get("/connectors/shop/topics"))
        second.wait(
            lambda: shown(second).get("cdc_source_latency_seconds_count", 0) > 0, "metrics of what it delivered"
        )
        metrics = shown(second)
        assert metrics["cdc_source_records_total"] >= 100
        assert {metric.shown for metric in SOURCE if metric.kind != "histogram"} - metrics.keys() <= SOMETIMES
        code, seconds = second.end(signal.SIGTERM)
        assert code == 0, second.log.read_text()
        assert seconds < 20
        found = read(kafka.bootstrap, topic, schemas)
        assert sorted(row for op, *row in found if op == "r") == [[i, 0] for i in range(1, 101)]
        assert len(found) == len({tuple(item) for item in found}) == 250
        assert env["SHOP_PASSWORD"] not in second.log.read_text()
        schema_log.close()
