"""A source that stands still goes on telling how far it is behind, and what its slot keeps: in `/metrics`, for alerts."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families
from psycopg.conninfo import conninfo_to_dict

from tests import plain_http
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


def config_of(db, worker: Any, name: str) -> dict[str, str]:
    where = conninfo_to_dict(db.info.dsn)
    return {
        "connector.class": "postgres",
        "database.hostname": str(where["host"]),
        "database.port": str(where["port"]),
        "database.user": str(where["user"]),
        "database.password": db.info.password,
        "database.dbname": str(where["dbname"]),
        "slot.name": f"standing_{name}_{os.getpid()}",
        "topic.prefix": f"{worker.group}-{name}",
        "publication.name": f"of_{name}",
        "publication.autocreate.mode": "disabled",
    }


class Source:
    """One connector, which comes to stand still in its own way."""

    def __init__(self, worker: Any, db: Any, name: str) -> None:
        self.worker, self.db, self.name = worker, db, name
        self.late = 0.0

    def begin(self) -> None:
        self.db.execute(f"create publication of_{self.name} for table t")
        self.worker.put(self.name, config_of(self.db, self.worker, self.name))

    def metric(self, name: str) -> float:
        """The value of one of its series, -1 of an absent one."""
        text = plain_http.get(self.worker.url + "/metrics", timeout=10).text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and sample.labels.get("connector") == self.name:
                    return float(sample.value)
        return -1.0

    def ask(self, what: str) -> None:
        assert plain_http.put(f"{self.worker.url}/connectors/{self.name}/{what}", timeout=30).status_code in (202, 204)

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        self.worker.wait(condition, f"{self.name}: {what}", 120)

    def await_idle(self) -> None:
        self.wait(lambda: self.metric("cdc_source_records_total") >= 1, "the row")
        self.wait(lambda: self.metric("cdc_source_lag_seconds") == 0, "an idle source at lag 0")

    def stand_still(self) -> None:
        if self.name == "fail":
            self.db.execute("drop publication of_fail")
            self.worker.wait_state(self.name, "FAILED", timeout_s=120)
        else:
            self.ask(self.name)
        if self.name == "pause":
            self.worker.wait_state(self.name, "PAUSED")
        if self.name == "stop":
            self.wait(lambda: self.worker.get("/connectors/stop/status")["tasks"] == [], "no tasks")

    def await_lag(self, written: int) -> None:
        self.wait(lambda: self.metric("cdc_slot_retained_bytes") > written, "the log that the slot keeps")
        self.wait(lambda: self.metric("cdc_source_lag_bytes") > written, "the lag in bytes")
        self.wait(lambda: self.metric("cdc_source_lag_seconds") > 0, "the lag in seconds")
        self.late = self.metric("cdc_source_lag_seconds")

    def await_growth(self) -> None:
        self.wait(lambda: self.metric("cdc_source_lag_seconds") > self.late, "a lag that grows")


def write(db) -> None:
    db.execute("insert into t select g, repeat('x', 1000) from generate_series(1, 5000) g on conflict (id) do nothing")
    db.execute("update t set v = v || 'y'")


@pytest.mark.sampled(2)
@pytest.mark.timeout(600)
def test_a_source_that_stands_still_tells_of_what_it_does_not_read(worker, db):
    """One that is paused, one that is stopped and one that failed, measured at the same time."""
    db.execute("create table t(id int primary key, v text); insert into t values (0, 'row')")
    sources = [Source(worker, db, name) for name in ("pause", "stop", "fail")]
    for step in (Source.begin, Source.await_idle, Source.stand_still):
        for source in sources:
            step(source)
    write(db)
    written = 5_000_000
    for source in sources:
        source.await_lag(written)
    for source in sources:
        source.await_growth()
    paused = sources[0]
    assert worker.task("pause")["metrics"]["slot_retained_bytes"] > written
    paused.ask("resume")
    paused.wait(lambda: paused.metric("cdc_source_lag_seconds") == 0, "a lag of 0")
    paused.wait(lambda: 0 <= paused.metric("cdc_source_lag_bytes") < written, "less lag")
