"""A source of ten thousand tables: its start, its first change, and the rows that they have."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from cdcworker.worker.devstack.kafka import EmbeddedKafka
from cdcworker.worker.devstack.postgres import EmbeddedPostgres
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.conftest import serving
from tests.integration import one_worker

from .test_topics import PLAIN, config_of

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.long]

TABLES = int(os.environ.get("CDC_WIDE_TABLES", "10000"))
START_S_MAX, WIDE_MIB_MAX = 60.0, 512
SNAPSHOT_S_MAX, LOADED_MIB_MAX = 600.0, 768
READ_S = 300.0


@pytest.fixture
def place(devstack_dir) -> Iterator[EmbeddedPostgres]:
    """Whose catalog is this test's alone."""
    with serving(EmbeddedPostgres(devstack_dir / "wide", {"max_locks_per_transaction": "512"})) as server:
        yield server


@pytest.fixture
def broker(devstack_dir) -> Iterator[EmbeddedKafka]:
    """Whose ten thousand topics go with it."""
    with serving(EmbeddedKafka(devstack_dir / "wide-kafka", heap="2g")) as server:
        yield server


def started(folder: Path, bootstrap: str) -> one_worker.Worker:
    # A broker that makes thousands of topics may keep a heartbeat waiting for longer than the tests' usual few seconds.
    worker = one_worker.Worker(folder, bootstrap, f"wide{uuid.uuid4().hex[:8]}", session_timeout_ms="30000")
    worker.wait_ready()
    return worker


def memory(pid: int) -> int:
    """Bytes, at the most."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def processor_s(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def rows_of(worker: one_worker.Worker, topic: str) -> list[dict]:
    return [json.loads(message.value()) for message in worker.read(topic)]


def make_tables(db: psycopg.Connection) -> None:
    for first in range(0, TABLES, 500):
        names = range(first, min(first + 500, TABLES))
        db.execute(";".join(f"create table t{n}(id int primary key, v text, at timestamptz)" for n in names))


@pytest.mark.timeout(1800)
def test_a_source_of_ten_thousand_tables_starts_and_its_first_change_arrives(kafka, place, tmp_path):
    database = place.create_database()
    with psycopg.connect(place.dsn(database), autocommit=True) as db:
        make_tables(db)
        db.execute("insert into t1 values (1, 'row')")
        worker = started(tmp_path, kafka.bootstrap)
        try:
            config = config_of(place.dsn(database), worker.group, **PLAIN, **{"snapshot.mode": "no_data"})
            began = time.monotonic()
            worker.put("wide", config)
            worker.wait_state("wide", "RUNNING", timeout_s=600)
            running_s = time.monotonic() - began
            db.execute(f"insert into t{TABLES - 1} values (2, 'new')")
            topic = f"{worker.group}.public.t{TABLES - 1}"
            worker.wait(lambda: topic_there(worker, topic) and rows_of(worker, topic), "its first change", 600)
            first_s = time.monotonic() - began
            pid = worker.starts("wide-0")[-1]
            print(
                f"\n{TABLES} tables: running after {running_s:.1f} s, the first change after {first_s:.1f} s,"
                f" {processor_s(pid):.1f} s of processor time, at most {memory(pid) >> 20} MiB"
            )
            assert first_s <= START_S_MAX
            assert memory(pid) >> 20 <= WIDE_MIB_MAX
        finally:
            worker.kill()


def topic_there(worker: one_worker.Worker, topic: str) -> bool:
    return topic in AdminClient({"bootstrap.servers": worker.bootstrap}).list_topics(timeout=10).topics


@pytest.mark.timeout(3600)
def test_the_rows_of_ten_thousand_tables_arrive_each_once(broker, place, tmp_path):
    database = place.create_database()
    counts = {f"t{n}": 1 + n % 3 for n in range(TABLES)}
    with psycopg.connect(place.dsn(database), autocommit=True) as db:
        make_tables(db)
        rows = [f"insert into {t} select g, 'row' from generate_series(1, {count}) g" for t, count in counts.items()]
        for first in range(0, TABLES, 500):
            db.execute(";".join(rows[first : first + 500]))
    worker = started(tmp_path, broker.bootstrap)
    try:
        single = {"topic.creation.default.partitions": "1", "topic.creation.default.replication.factor": "1"}
        began = time.monotonic()
        worker.put("wide", config_of(place.dsn(database), worker.group, **PLAIN, **single))
        worker.wait_state("wide", "RUNNING", timeout_s=600)
        running_s = time.monotonic() - began
        worker.wait(lambda: is_loaded(worker), "all rows", 3000)
        took = time.monotonic() - began
        (pid,) = worker.starts("wide-0")
        print(
            f"\n{sum(counts.values())} rows of {TABLES} tables: running after {running_s:.1f} s, read after {took:.1f} s,"
            f" {processor_s(pid):.1f} s of processor time, at most {memory(pid) >> 20} MiB"
        )
        prefix = f"{worker.group}.public."
        found = Counter((topic.removeprefix(prefix), row) for topic, row in all_rows(broker.bootstrap, prefix))
        assert found == {(table, row): 1 for table, count in counts.items() for row in range(1, count + 1)}
        assert took <= SNAPSHOT_S_MAX
        assert memory(pid) >> 20 <= LOADED_MIB_MAX
    finally:
        worker.kill()


def is_loaded(worker: one_worker.Worker) -> bool:
    return [one["state"] for one in worker.get("/v1/connectors/wide/snapshots")["snapshots"]] == ["COMPLETED"]


def all_rows(bootstrap: str, prefix: str) -> Iterator[tuple[str, int]]:
    """Topic and key of every committed record of the topics of this prefix."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "t", "isolation.level": "read_committed"}
    with closing(Consumer({**settings, "enable.partition.eof": True})) as consumer:
        topics = [topic for topic in consumer.list_topics(timeout=60.0).topics if topic.startswith(prefix)]
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in topics])
        left, deadline = set(topics), time.monotonic() + READ_S
        while left:
            assert time.monotonic() < deadline, f"{len(left)} topics are not read to their end"
            for message in consumer.consume(10_000, 1.0):
                if message.error():
                    left.discard(message.topic())
                else:
                    yield message.topic(), json.loads(message.key())["id"]
