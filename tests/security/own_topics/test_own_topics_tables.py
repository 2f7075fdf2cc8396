"""A table of a real PostgreSQL whose topic no connector may write: it is held back and said so, the other tables go on."""

from __future__ import annotations

import secrets

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from psycopg.conninfo import conninfo_to_dict

from tests.integration import one_worker

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]
JSON = "org.apache.kafka.connect.json.JsonConverter"


@pytest.fixture
def db(postgres):
    name = postgres.create_database()
    with psycopg.connect(postgres.dsn(name), autocommit=True) as connection:
        yield connection
    postgres.drop_database(name)


@pytest.fixture
def worker(kafka, tmp_path):
    group = f"t{secrets.token_hex(4)}"
    one = one_worker.Worker(tmp_path, kafka.bootstrap, group, **{"connector.topics.closed": f"{group}.public.shut*"})
    try:
        one.wait(lambda: one.get("/health")["status"] == "healthy", "health", 180.0)
        yield one
    finally:
        one.kill()


@pytest.mark.parametrize("form", ["avro", "json"])
def test_a_table_of_a_closed_topic_is_held_back_and_the_others_go_on(worker, db, form):
    db.execute("create table shut(id int primary key); create table small(id int primary key)")
    db.execute("insert into shut values (1); insert into small values (1)")
    where = conninfo_to_dict(db.info.dsn)
    config = {
        "connector.class": "postgres",
        "database.hostname": str(where["host"]),
        "database.port": str(where["port"]),
        "database.user": str(where["user"]),
        "database.password": db.info.password,
        "database.dbname": str(where["dbname"]),
        "slot.name": worker.group,
        "topic.prefix": worker.group,
    }
    if form == "json":
        config |= {"key.converter": JSON, "value.converter": JSON}
    worker.put("shop", config)
    (held,) = worker.wait(lambda: (worker.task("shop")["metrics"] or {}).get("quarantine"), "the quarantine", 180.0)
    assert (held["table"], held["code"]) == ("public.shut", "source.topic_refused")
    db.execute("insert into shut values (2); insert into small values (2)")
    small = f"{worker.group}.public.small"
    worker.wait(lambda: len(worker.read(small)) == 2, "the other table", 180.0)
    assert worker.task("shop")["state"] == "RUNNING"
    assert len(worker.starts("shop-0")) == 1
    shut = f"{worker.group}.public.shut"
    assert not any(subject.startswith(shut) for subject in worker.schemas().subjects())
    assert not [
        name
        for name in AdminClient({"bootstrap.servers": worker.bootstrap}).list_topics(timeout=10).topics
        if name == shut
    ]
