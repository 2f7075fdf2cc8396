"""Workers of the previous build are replaced one by one by this one's while sources, a snapshot and a warehouse are at work."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cdcworker.coordinator.kafka.compacted_log import KafkaCompactedLog
from cdcworker.schemas.decode import RecordDecoder
from cdcworker.schemas.log import SchemaLog
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from .cluster import Cluster, Worker, wait
from .load import COLUMNS, SCHEMA, TABLES, Load, differences

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(2400)]

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("schemas", "coordinator", "connectors", "worker")
BACK = 20
"""First parents that make a previous build where no version is tagged."""
VERSION = "0.0.0"
TASKS = 3
BULK = 60_000
"""Rows of a table that is loaded while the workers are replaced."""


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def previous() -> str:
    """What is upgraded from: CDC_PREVIOUS_BUILD, the last tag, or some commits ago."""
    tag = git("describe", "--tags", "--abbrev=0", "HEAD^")
    return os.environ.get("CDC_PREVIOUS_BUILD") or tag or git("rev-parse", "--verify", f"HEAD~{BACK}")


@pytest.fixture(scope="module")
def old_build(tmp_path_factory) -> dict[str, str]:
    """The environment in which `cdcworker` is the previous build, under a version of its own."""
    commit = previous()
    if not commit:
        pytest.skip("missing part previous build: no history")
    tree, site = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("site")
    archive = tree / "tree.tar"
    assert git("archive", "--format=tar", f"--output={archive}", commit) == ""
    with tarfile.open(archive) as packed:
        packed.extractall(tree, filter="data")
    # Builds without their compiled parts are slower, no other builds.
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(build, cwd=tree, capture_output=True, check=False)
    (site / "cdcworker").mkdir()
    for room in ROOMS:
        (site / "cdcworker" / room).symlink_to(tree / room)
    about = site / f"cdcworker-{VERSION}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: cdcworker\nVersion: {VERSION}\n")
    return {**os.environ, "PYTHONPATH": str(site), "CDC_TEST_BUILD": commit}


@pytest.fixture
def cluster(kafka, postgres, tmp_path, old_build) -> Iterator[Cluster]:
    """Three workers of the previous build, a generator in three tasks, a database under load and its warehouse."""
    found = Cluster(kafka, postgres, tmp_path)
    with psycopg.connect(postgres.dsn(found.source_db)) as connection:
        connection.execute(SCHEMA)
        connection.execute("create table ticks (id bigint generated always as identity primary key, batch int)")
        connection.execute(f"create table bulk as select n as id, n::text as name from generate_series(1, {BULK}) n")
        connection.execute("alter table bulk add primary key (id)")
    try:
        for number in range(3):
            found.start_worker(name=f"w{number}", env=old_build, sink_standby="0")
        found.submit("gen", generator(found))
        name = found.group.replace("-", "_")
        tables = ",".join(f"public.{table}" for table in (*TABLES, "ticks", "bulk"))
        found.submit(
            "shop",
            {
                "connector.class": "postgres",
                **found.connection("database", found.source_db),
                "topic.prefix": found.group,
                "slot.name": name,
                "publication.name": name,
                "table.include.list": tables,
                "snapshot.mode": "no_data",
            },
        )
        found.submit(
            "warehouse",
            {
                "connector.class": "spark",
                "topics": ",".join(f"{found.group}.public.{table}" for table in (*TABLES, "ticks", "bulk")),
                "warehouse": "postgres",
                **found.connection("warehouse", found.warehouse_db),
            },
        )
        yield found
    finally:
        found.stop()


def generator(cluster: Cluster, **more: str) -> dict[str, str]:
    prefix = {"topic.prefix": f"{cluster.group}-gen", "tasks.max": str(TASKS), "rows.per.second": "150"}
    return {"connector.class": "datagen", **prefix, **more}


class Ticks(Load):
    """Besides, transactions of three rows each whose numbers have no gap."""

    def transaction(self, connection: psycopg.Connection[Any]) -> None:
        super().transaction(connection)
        connection.execute("insert into ticks (batch) select %s from generate_series(1, 3)", (self.transactions,))


def versions(cluster: Cluster) -> dict[str, str]:
    return {worker["id"]: worker["version"] for worker in cluster.cluster()["workers"]}


def all_run(cluster: Cluster) -> bool:
    tasks = cluster.cluster()["tasks"]
    alive = {worker.id for worker in cluster.workers.values()}
    return len(tasks) == TASKS + 2 and all(t["state"] == "RUNNING" and t["worker"] in alive for t in tasks)


def wait_for_all(cluster: Cluster) -> None:
    try:
        wait("all tasks run", lambda: all_run(cluster), 240)
    except AssertionError as error:
        shown = [
            {n: t[n] for n in ("connector", "task", "state", "worker", "error")} for t in cluster.cluster()["tasks"]
        ]
        raise AssertionError(f"{error}: {shown}") from None


def test_workers_are_replaced_one_by_one_and_nothing_is_lost_or_twice(cluster: Cluster, postgres) -> None:
    running = Ticks(postgres.dsn(cluster.source_db), seed=7)
    wait_for_all(cluster)
    running.start()
    asked = {"tables": ["public.bulk"], "rows_per_s": 300}
    assert cluster.rest("POST", "/v1/connectors/shop/snapshots", asked).is_success
    try:
        assert set(versions(cluster).values()) == {VERSION}
        running.more(100)
        wait("the snapshot is under way", lambda: snapshot(cluster)["rows"], 120)
        assert snapshot(cluster)["rows"] < BULK, "no worker is replaced during the snapshot"
        for number in range(3):
            old = cluster.workers.pop(f"w{number}")
            old.process.stop(timeout_s=120)
            assert old.process.returncode == 0
            cluster.start_worker(name=old.id, sink_standby="0")
            wait_for_all(cluster)
            told = versions(cluster)
            assert [worker for worker in sorted(told) if told[worker] == VERSION] == [
                f"w{n}" for n in range(number + 1, 3)
            ]
            running.more(100)
    finally:
        running.finish()
    wait("the snapshot ends", lambda: snapshot(cluster)["state"] not in ("RUNNING", "PENDING"), 600, 1.0)
    assert_ticks_are_there_once(cluster, postgres)
    assert_loaded_rows_are_there_once(cluster)
    source, warehouse = postgres.dsn(cluster.source_db), postgres.dsn(cluster.warehouse_db)
    wait("the warehouse has all", lambda: not unequal(source, warehouse), 300, 2.0)
    assert_generated_rows_are_there_once(cluster)


def test_workers_of_both_builds_forward_requests_to_each_other(kafka, postgres, tmp_path, old_build) -> None:
    """Each build signs as the other one understands, whichever leads."""
    cluster = Cluster(kafka, postgres, tmp_path)
    path, body = "/admin/loggers/cdcworker.testing?scope=cluster", {"level": "WARN"}

    def forwards(worker: Worker) -> bool:
        return bool(cluster.rest("PUT", path, body, worker).status_code == 204)

    try:
        old = cluster.start_worker(name="old", env=old_build, sink_standby="0")
        new = cluster.start_worker(name="new", sink_standby="0")
        assert cluster.leader() is old
        wait("the old worker acts for the new one", lambda: forwards(new), 60)
        cluster.workers.pop("old").process.stop(timeout_s=120)
        wait("the new worker leads", lambda: cluster.leader() is new, 60)
        again = cluster.start_worker(name="old", env=old_build, sink_standby="0")
        wait("the new worker acts for the old one", lambda: forwards(again), 60)
        assert cluster.leader() is new
    finally:
        cluster.stop()


def snapshot(cluster: Cluster) -> dict[str, Any]:
    (found,) = cluster.rest("GET", "/v1/connectors/shop/snapshots").json()["snapshots"]
    return dict(found)


def unequal(source: str, warehouse: str) -> dict[str, tuple[int, int, int]]:
    return differences(source, warehouse, {**COLUMNS, "ticks": "id, batch", "bulk": "id, name"})


def assert_loaded_rows_are_there_once(cluster: Cluster) -> None:
    ids = Counter(row["after"]["id"] for row in rows(cluster, f"{cluster.group}.public.bulk"))
    assert len(ids) == BULK
    assert set(ids.values()) == {1}


def assert_ticks_are_there_once(cluster: Cluster, postgres) -> None:
    with psycopg.connect(postgres.dsn(cluster.source_db)) as connection:
        wanted = [row[0] for row in connection.execute("select id from ticks order by id")]
    topic = f"{cluster.group}.public.ticks"
    wait("the last row is in the topic", lambda: len(rows(cluster, topic)) >= len(wanted), 120, 1.0)
    found = rows(cluster, topic)
    assert [row["after"]["id"] for row in found] == wanted
    for table in TABLES:
        places = Counter(position(row) for row in rows(cluster, f"{cluster.group}.public.{table}"))
        assert places
        assert set(places.values()) == {1}


def assert_generated_rows_are_there_once(cluster: Cluster) -> None:
    answer = cluster.rest("PUT", "/connectors/gen/stop")
    assert answer.status_code in (202, 204), answer.text
    wait("the generator has stopped", lambda: not cluster.status("gen").get("tasks"), 60)
    topics = [
        name
        for name in consumer(cluster).list_topics(timeout=10).topics
        if name.startswith(f"{cluster.group}-gen.task")
    ]
    assert len(topics) == TASKS
    for topic in topics:
        numbers = [row["after"]["n"] for row in rows(cluster, topic)]
        assert numbers
        assert numbers == list(range(len(numbers)))


def position(row: dict[str, Any]) -> tuple[int, int, int]:
    source = row["source"]
    return source["commit_lsn"], source["tx_index"], source["tx_sub"]


def consumer(cluster: Cluster) -> Consumer:
    settings = {"bootstrap.servers": cluster.kafka.bootstrap, "group.id": f"check-{uuid.uuid4().hex}"}
    return Consumer({**settings, "isolation.level": "read_committed", "enable.partition.eof": True})


def rows(cluster: Cluster, topic: str) -> list[dict[str, Any]]:
    """All committed values of a topic with one partition, decoded."""
    decoder = RecordDecoder(schemas(cluster))
    return [decoder.decode(value) for value in values(cluster, topic) if value is not None]


def values(cluster: Cluster, topic: str) -> list[bytes | None]:
    reader = consumer(cluster)
    place = TopicPartition(topic, 0, OFFSET_BEGINNING)
    reader.assign([place])
    found: list[bytes | None] = []
    try:
        while True:
            messages = reader.consume(1000, 10.0)
            assert messages, "the broker does not answer"
            for message in messages:
                if message.error() is not None:
                    return found
                found.append(message.value())
    finally:
        reader.close()


def schemas(cluster: Cluster) -> SchemaLog:
    log = KafkaCompactedLog(
        {"bootstrap.servers": cluster.kafka.bootstrap}, f"{cluster.group}.schemas", client_id="check"
    )
    try:
        return SchemaLog((record.key, record.value) for record in log.read_to_end(30.0))
    finally:
        log.close()
