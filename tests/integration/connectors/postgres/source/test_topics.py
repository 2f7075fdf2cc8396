"""What whole workers with real sources write to Kafka: several slots, heartbeats, and what transactions consist of."""

from __future__ import annotations

import json
import os
import signal
import time
import uuid

import pytest
from cdcworker.connectors.capture.config.table_share import TableShare
from cdcworker.schemas.decode import RecordDecoder
from cdcworker.worker.quickstart.roles import make_reader
from psycopg.conninfo import conninfo_to_dict

from tests import plain_http
from tests.integration import one_worker

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]

TABLES = ("a", "b", "d", "t")
PLAIN = {
    f"{side}.converter{key}": text
    for side in ("key", "value")
    for key, text in (("", "org.apache.kafka.connect.json.JsonConverter"), (".schemas.enable", "false"))
}


@pytest.fixture(scope="module")
def worker(kafka, tmp_path_factory):
    one = one_worker.Worker(tmp_path_factory.mktemp("topics"), kafka.bootstrap, f"st{uuid.uuid4().hex[:8]}")
    one.wait_ready()
    yield one
    one.kill()


def config_of(dsn: str, prefix: str, **more: str) -> dict[str, str]:
    where = conninfo_to_dict(dsn)
    return {
        "connector.class": "postgres",
        "database.hostname": str(where["host"]),
        "database.port": str(where["port"]),
        "database.user": str(where["user"]),
        "database.password": str(where["password"]),
        "database.dbname": str(where["dbname"]),
        "slot.name": f"s_{where['dbname']}",
        "publication.name": f"p_{where['dbname']}",
        "topic.prefix": prefix,
        **more,
    }


@pytest.fixture
def role(postgres, database, db):
    """Connection string of a role that has what `cdcworker roles` gives, over `TABLES`."""
    name = f"source_{database}"
    for table in TABLES:
        db.execute(f"create table {table}(id int primary key, v text)")

    def make(slots: int = 1) -> str:
        tables = [("public", table) for table in TABLES]
        return make_reader(postgres.dsn(database), name, "only here", tables, f"p_{database}", slots)

    yield make
    db.execute(f"drop owned by {name}")
    db.execute(f"drop role {name}")


def test_with_two_slots_one_task_is_killed_and_every_change_is_there_once(worker, db, role):
    assert {TableShare(0, 2).has(f"public.{table}") for table in TABLES} == {True, False}
    for table in TABLES:
        db.execute(f"insert into {table} select g, 'row' from generate_series(1, 20) g")
    prefix = f"{worker.group}.two"
    config = config_of(role(slots=2), prefix, **{"slot.count": "2", "tasks.max": "2", "database.sslmode": "disable"})
    worker.put("two", config)
    for number in range(2):
        worker.wait_state("two", "RUNNING", number)
    ids = iter(range(1000, 10_000))

    def write(count: int) -> None:
        for _ in range(count):
            with db.transaction():
                number = next(ids)
                for table in TABLES:
                    db.execute(f"insert into {table} values (%s, 'new')", (number,))
                    db.execute(f"update {table} set v = v || '.' where id = %s", (number % 20 + 1,))

    def records(table: str) -> list[dict]:
        decoder = RecordDecoder(worker.schemas())
        return [decoder.decode(message.value()) for message in worker.read(f"{prefix}.public.{table}")]

    def changes(table: str) -> int:
        return sum(record["op"] != "r" for record in records(table))

    write(20)
    worker.wait(lambda: all(changes(table) for table in TABLES), "changes of both slots")
    (pid,) = worker.starts("two-1")
    write(20)
    os.kill(pid, signal.SIGKILL)
    write(20)
    worker.wait(lambda: len(worker.starts("two-1")) == 2, "another process")
    write(20)
    worker.wait(lambda: all(changes(table) >= 160 for table in TABLES), "everything")
    assert len(worker.starts("two-0")) == 1
    for table in TABLES:
        found = records(table)
        at = [tuple(record["source"][name] for name in ("commit_lsn", "tx_index", "tx_sub")) for record in found]
        assert len(set(at)) == len(at)
        assert changes(table) == 160
        rows = {record["after"]["id"]: record["after"]["v"] for record in sorted(found, key=position)}
        assert rows == dict(db.execute(f"select id, v from {table}").fetchall())
    found = worker.get("/v1/connectors/two/doctor?check=slot.position")["findings"]
    assert [finding["severity"] for finding in found] == ["ok", "ok"]


def position(record: dict) -> tuple[int, int]:
    return record["source"]["commit_lsn"], record["source"]["tx_index"]


def test_transactions_and_heartbeats_are_told_of_in_topics_of_their_own(worker, db, role):
    prefix = f"{worker.group}.whole"
    more = {"provide.transaction.metadata": "true", "heartbeat.interval.ms": "200", "snapshot.mode": "no_data", **PLAIN}
    worker.put("whole", config_of(role(), prefix, **more))
    worker.wait_state("whole", "RUNNING")

    def read(topic: str) -> list[tuple[dict, dict]]:
        return [(json.loads(message.key()), json.loads(message.value())) for message in worker.read(topic)]

    beats = worker.wait(lambda: len(read(f"__debezium-heartbeat.{prefix}")) > 2, "heartbeats") and read(
        f"__debezium-heartbeat.{prefix}"
    )
    assert all(key == {"serverName": prefix} for key, _ in beats)
    times = [value["ts_ms"] for _, value in beats]
    assert times == sorted(times)
    assert 0 <= time.time() * 1000 - times[-1] < 60_000
    with db.transaction():
        db.execute("insert into a values (1, 'x'), (2, 'x'); insert into b values (1, 'y')")
    db.execute("delete from a where id = 1")
    worker.wait(lambda: len(read(f"{prefix}.transaction")) == 4, "two transactions")
    told = read(f"{prefix}.transaction")
    assert [(value["status"], value["event_count"]) for _, value in told] == [
        ("BEGIN", None), ("END", 3), ("BEGIN", None), ("END", 1),
    ]  # fmt: skip
    assert [key["id"] for key, _ in told] == [value["id"] for _, value in told]
    counts = {item["data_collection"]: item["event_count"] for item in told[1][1]["data_collections"]}
    assert counts == {"public.a": 2, "public.b": 1}
    rows = [json.loads(message.value()) for message in worker.read(f"{prefix}.public.a") if message.value()]
    assert [(row["op"], row["transaction"]["total_order"]) for row in rows] == [("c", 1), ("c", 2), ("d", 1)]
    assert {row["transaction"]["id"] for row in rows} == {told[0][1]["id"], told[2][1]["id"]}


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_records_of_data_name_their_writer_where_that_is_asked_for(worker, db, role, delivery):
    db.execute("alter table a alter v set storage external")
    db.execute("insert into a select 1, repeat('x', 3000)")
    prefix = f"{worker.group}.{delivery}"
    name = f"headed-{delivery}"
    worker.put(name, config_of(role(), prefix, **{"extended.headers.enabled": "true", "delivery": delivery}))
    worker.wait(lambda: len(worker.read(f"{prefix}.public.a")) == 1, "the row of the snapshot")
    db.execute("update a set id = 2 where id = 1; delete from a where id = 2; insert into a values (3, 'y')")
    # Deleted and made anew under the other key, the deletion, each with its tombstone, and the last row.
    records = worker.wait(lambda: (found := worker.read(f"{prefix}.public.a"))[6:] and found, "the stream's")
    mine = [("connectorLogicalName", prefix.encode()), ("taskId", b"0"), ("connectorName", b"postgresql")]
    assert len(records) == 7
    for record in records:
        assert record.headers()[-3:] == [(f"__debezium.context.{key}", value) for key, value in mine]
    assert sum(len(record.headers()) > 3 for record in records) >= 2, "those of the key's change have their own too"
    (position,) = {json.dumps(m.headers()) for m in worker.read(f"{prefix}.watermark")}
    assert "context" not in position
    assert plain_http.delete(f"{worker.url}/connectors/{name}", timeout=30.0).status_code == 204
