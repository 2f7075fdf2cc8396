"""A table whose row is too large for its topic is held back by a real worker; the others go on, and it comes back."""

from __future__ import annotations

import json
import os
import uuid
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.integration import one_worker

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]


@pytest.fixture(scope="module")
def one(kafka, tmp_path_factory):
    made = one_worker.Worker(tmp_path_factory.mktemp("worker"), kafka.bootstrap, f"h{uuid.uuid4().hex[:8]}")
    made.wait_ready()
    yield made
    assert made.end() == 0


@pytest.fixture
def worker(one, db):
    yield one
    one.clear()


@pytest.fixture
def db(postgres):
    name = postgres.create_database()
    with psycopg.connect(postgres.dsn(name), autocommit=True) as connection:
        yield connection
    postgres.drop_database(name)


def changes(worker: Any, topic: str) -> list[tuple[str, Any]]:
    found = [json.loads(message.value()) for message in worker.read(topic) if message.value() is not None]
    return [(change["op"], (change["after"] or {}).get("id")) for change in found]


def config_of(db, worker: Any) -> dict[str, str]:
    where = conninfo_to_dict(db.info.dsn)
    return {
        "connector.class": "postgres",
        "database.hostname": str(where["host"]),
        "database.port": str(where["port"]),
        "database.user": str(where["user"]),
        "database.password": db.info.password,
        "database.dbname": str(where["dbname"]),
        "slot.name": f"held_{os.getpid()}",
        "topic.prefix": worker.prefix,
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "key.converter.schemas.enable": "false",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
    }


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_row_that_fits_neither_text_nor_kafka_holds_its_table_back_and_the_stream_goes_on(worker, db):
    db.execute("create table big(id int primary key, data bytea); create table small(id int primary key)")
    db.execute("insert into small values (1)")
    worker.put("shop", config_of(db, worker))
    small = f"{worker.prefix}.public.small"
    worker.wait(lambda: changes(worker, small) == [("r", 1)], "the rows")
    with db.transaction():
        db.execute("insert into small values (2)")
        db.execute("insert into big select 1, convert_to(repeat('x', 600000000), 'SQL_ASCII')")
        db.execute("insert into small values (3)")
    db.execute("insert into small values (4)")
    resident: list[int] = []

    def held() -> list[dict[str, Any]]:
        metrics = worker.task("shop")["metrics"] or {}
        resident.append(metrics.get("rss_bytes") or 0)
        return metrics.get("quarantine") or []

    (one,) = worker.wait(held, "the quarantine", 300)
    assert (one["table"], one["code"]) == ("public.big", "postgres.row_too_large")
    worker.wait(lambda: changes(worker, small) == [("r", 1), ("c", 2), ("c", 3), ("c", 4)], "the other table", 300)
    assert worker.task("shop")["state"] == "RUNNING"
    print(f"peak {max(resident) / 1e6:.0f} MB for a row of 600 MB")
    assert max(resident) <= 6 * 600_000_000


def test_a_row_too_large_holds_its_table_back_until_the_config_is_changed(worker, db):
    db.execute("create table big(id int primary key, body text); create table small(id int primary key)")
    db.execute("insert into big values (1, 'x'), (2, 'y'); insert into small values (1)")
    config = config_of(db, worker)
    worker.put("shop", config)
    big, small = f"{worker.prefix}.public.big", f"{worker.prefix}.public.small"
    worker.wait(lambda: changes(worker, big) == [("r", 1), ("r", 2)], "the rows")
    with db.transaction():
        db.execute("insert into small values (2)")
        db.execute("insert into big select 3, string_agg(md5(g::text), '') from generate_series(1, 100000) g")
    db.execute("insert into small values (3); delete from big where id = 1")
    worker.wait(lambda: changes(worker, small) == [("r", 1), ("c", 2), ("c", 3)], "the other table")
    held = worker.wait(lambda: worker.task("shop")["metrics"]["quarantine"], "the quarantine")
    assert [(one["table"], one["code"]) for one in held] == [("public.big", "source.record_too_large")]
    assert worker.task("shop")["state"] == "RUNNING"
    findings = worker.get("/v1/connectors/shop/doctor?check=tables.held")["findings"]
    assert [finding["code"] for finding in findings] == ["source.record_too_large"]
    assert changes(worker, big) == [("r", 1), ("r", 2)]
    db.execute("delete from big where id = 3; insert into big values (4, 'z')")
    worker.put("shop", {**config, "heartbeat.interval.ms": "9000"})
    worker.wait(lambda: len(changes(worker, big)) >= 5, "the table")
    assert changes(worker, big)[2:] == [("t", None), ("r", 2), ("r", 4)]
    worker.wait(lambda: worker.task("shop")["metrics"]["quarantine"] == [], "no quarantine")
