"""A source that stands still goes on telling how far it is behind, and what its slot keeps: in `/metrics`, for alerts."""

from __future__ import annotations

import os
import uuid
from typing import Any

import httpx
import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families
from psycopg.conninfo import conninfo_to_dict

from tests.integration import one_worker

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]


@pytest.fixture
def worker(kafka, tmp_path):
    one = one_worker.Worker(tmp_path, kafka.bootstrap, f"s{uuid.uuid4().hex[:8]}")
    one.wait_ready()
    yield one
    assert one.end() == 0


@pytest.fixture
def db(postgres):
    name = postgres.create_database()
    with psycopg.connect(postgres.dsn(name), autocommit=True) as connection:
        yield connection
        connection.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s and not active",
            (name,),
        )
    postgres.drop_database(name)


def config_of(db, worker: Any) -> dict[str, str]:
    where = conninfo_to_dict(db.info.dsn)
    return {
        "connector.class": "postgres",
        "database.hostname": str(where["host"]),
        "database.port": str(where["port"]),
        "database.user": str(where["user"]),
        "database.password": db.info.password,
        "database.dbname": str(where["dbname"]),
        "slot.name": f"standing_{os.getpid()}",
        "topic.prefix": worker.group,
        "publication.name": "standing",
        "publication.autocreate.mode": "disabled",
    }


def metric(worker: Any, name: str) -> float | None:
    text = httpx.get(worker.url + "/metrics", timeout=10).text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and sample.labels.get("connector") == "shop":
                return sample.value
    return None


def write(db) -> None:
    db.execute("insert into t select g, repeat('x', 1000) from generate_series(1, 5000) g on conflict (id) do nothing")
    db.execute("update t set v = v || 'y'")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["pause", "stop", "fail"])
def test_a_source_that_stands_still_tells_of_what_it_does_not_read(worker, db, how):
    db.execute("create table t(id int primary key, v text); insert into t values (0, 'row')")
    db.execute("create publication standing for table t")
    worker.put("shop", config_of(db, worker))
    worker.wait(lambda: (metric(worker, "cdc_source_records_total") or 0) >= 1, "the row")
    worker.wait(lambda: metric(worker, "cdc_source_lag_seconds") == 0, "an idle source at lag 0")
    if how == "fail":
        db.execute("drop publication standing")
        worker.wait_state("shop", "FAILED")
    else:
        assert httpx.put(f"{worker.url}/connectors/shop/{how}", timeout=30).status_code in (202, 204)
        if how == "pause":
            worker.wait_state("shop", "PAUSED")
        else:
            worker.wait(lambda: worker.get("/connectors/shop/status")["tasks"] == [], "no tasks")
    write(db)
    written = 5_000_000
    worker.wait(lambda: (metric(worker, "cdc_slot_retained_bytes") or 0) > written, "the log that the slot keeps", 90)
    worker.wait(lambda: (metric(worker, "cdc_source_lag_bytes") or 0) > written, "the lag in bytes")
    late = worker.wait(lambda: metric(worker, "cdc_source_lag_seconds"), "the lag in seconds")
    worker.wait(lambda: (metric(worker, "cdc_source_lag_seconds") or 0) > late, "a lag that grows", 90)
    if how == "pause":
        assert worker.task("shop")["metrics"]["slot_retained_bytes"] > written
        assert httpx.put(f"{worker.url}/connectors/shop/resume", timeout=30).status_code == 202
        worker.wait(lambda: metric(worker, "cdc_source_lag_seconds") == 0, "a lag of 0", 90)
        worker.wait(lambda: (metric(worker, "cdc_source_lag_bytes") or 0) < written, "less lag", 60)
