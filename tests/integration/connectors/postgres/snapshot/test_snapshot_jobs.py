"""A snapshot that was asked for over REST, and a worker that is killed in the middle of it."""

from __future__ import annotations

import uuid

import psycopg
import pytest
from cdcworker.schemas.decode import RecordDecoder
from psycopg.conninfo import conninfo_to_dict

from tests import plain_http
from tests.integration import one_worker

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.sampled(2)]

ROWS = 5_000
RATE = 500
"""Slow enough that a kill meets it in the middle."""


@pytest.fixture
def source(postgres):
    name = postgres.create_database()
    with psycopg.connect(postgres.dsn(name), autocommit=True) as db:
        db.execute("create table t (id int primary key, v text)")
        db.execute(f"insert into t select n, repeat('x', 100) from generate_series(1, {ROWS}) n")
    yield conninfo_to_dict(postgres.dsn(name))
    postgres.drop_database(name)


@pytest.fixture
def start(kafka, tmp_path):
    group, started = f"j{uuid.uuid4().hex[:8]}", []

    def make(name):
        worker = one_worker.Worker(tmp_path, kafka.bootstrap, group, name)
        started.append(worker)
        worker.wait_ready()
        return worker

    yield make
    for worker in started:
        worker.kill()


def config_of(source, prefix):
    return {
        "connector.class": "postgres",
        "topic.prefix": prefix,
        "slot.name": prefix,
        "publication.name": prefix,
        "snapshot.mode": "no_data",
        "snapshot.chunk.max.bytes": "16384",
        **{f"database.{key}": str(source.get(part) or "none") for key, part in PARTS.items()},
    }


PARTS = {"hostname": "host", "port": "port", "user": "user", "password": "password", "dbname": "dbname"}


def test_it_goes_on_at_the_next_worker_and_its_progress_can_be_read_all_the_time(start, source):
    first = start("w1")
    first.put("shop", config_of(source, first.group))
    first.wait_state("shop", "RUNNING")
    made = plain_http.post(
        f"{first.url}/v1/connectors/shop/snapshots", json={"tables": ["public.t"], "rows_per_s": RATE}, timeout=30
    )
    assert made.status_code == 202, made.text
    place = made.headers["location"]

    def so_far(worker, least):
        found = worker.get(place)
        return found if (found["rows"] or 0) >= least else None

    before = first.wait(lambda: so_far(first, ROWS // 10), "a tenth of the rows")
    assert before["state"] == "RUNNING"
    first.kill()

    second = start("w2")
    listed = second.get("/v1/connectors/shop/snapshots")["snapshots"]
    assert [(item["id"], item["tables"]) for item in listed] == [(made.json()["id"], ["public.t"])]
    read = []

    def ended():
        found = second.get(place)
        read.append(found["rows"] or 0)
        return found if found["state"] not in ("RUNNING", "PENDING") else None

    last = second.wait(ended, "the end of the snapshot")
    assert (last["state"], last["rows"], last["error"]) == ("COMPLETED", ROWS, None)
    assert [last[f"tables_{name}"] for name in ("done", "cancelled", "total")] == [1, 0, 1]
    # What the first worker had told before is told all along: neither nothing nor a beginning anew.
    assert min(read) >= before["rows"]
    decoder = RecordDecoder(second.schemas())
    rows = [decoder.decode(record.value())["after"]["id"] for record in second.read(f"{second.group}.public.t")]
    assert sorted(rows) == list(range(1, ROWS + 1)), "each row once"
