"""Sources whose topics are compacted: records that a broker refuses, and rows that a late reader has to build."""

from __future__ import annotations

import json
import os
import uuid
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from psycopg.conninfo import conninfo_to_dict

from tests.integration import one_worker

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]

POLICY = "topic.creation.default.cleanup.policy"


@pytest.fixture(scope="module")
def one(kafka, tmp_path_factory):
    made = one_worker.Worker(tmp_path_factory.mktemp("worker"), kafka.bootstrap, f"k{uuid.uuid4().hex[:8]}")
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


def config_of(db, worker: Any, **more: str) -> dict[str, str]:
    where = conninfo_to_dict(db.info.dsn)
    return {
        "connector.class": "postgres",
        "database.hostname": str(where["host"]),
        "database.port": str(where["port"]),
        "database.user": str(where["user"]),
        "database.password": db.info.password,
        "database.dbname": str(where["dbname"]),
        "slot.name": f"compact_{os.getpid()}_{uuid.uuid4().hex[:6]}",
        "topic.prefix": worker.prefix,
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "key.converter.schemas.enable": "false",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        **more,
    }


@pytest.mark.sampled(3, "compacted")
def test_a_truncate_over_a_compacted_topic_holds_its_table_and_the_others_go_on(worker, db):
    db.execute("create table emptied(id int primary key); create table other(id int primary key)")
    db.execute("insert into emptied values (1); insert into other values (1)")
    config = config_of(db, worker, **{POLICY: "compact"})
    worker.put("shop", config)
    emptied, other = f"{worker.prefix}.public.emptied", f"{worker.prefix}.public.other"
    worker.wait(lambda: changes(worker, other) == [("r", 1)], "the rows")
    worker.wait(lambda: changes(worker, emptied) == [("r", 1)], "the rows")
    db.execute("truncate emptied; insert into other values (2)")
    worker.wait(lambda: changes(worker, other) == [("r", 1), ("c", 2)], "the other table")
    held = worker.wait(lambda: worker.task("shop")["metrics"]["quarantine"], "the quarantine")
    assert [(one["table"], one["code"]) for one in held] == [("public.emptied", "source.record_without_key")]
    assert worker.task("shop")["state"] == "RUNNING"
    # Once truncates are left out the table comes back, and its rows are read again.
    db.execute("insert into emptied values (7)")
    worker.put("shop", {**config, "skipped.operations": "t"})
    worker.wait(lambda: changes(worker, emptied) == [("r", 1), ("r", 7)], "the table")
    db.execute("truncate emptied; insert into emptied values (8)")
    worker.wait(lambda: changes(worker, emptied)[2:] == [("c", 8)], "the next row")
    worker.wait(lambda: worker.task("shop")["metrics"]["quarantine"] == [], "no quarantine")
    assert worker.task("shop")["metrics"]["incomplete_topics"] == []
    # Without the policy rows are not read again, and the topics are still compacted.
    worker.put("shop", {name: value for name, value in config.items() if name != POLICY} | {"skipped.operations": "t"})

    def named() -> list[str]:
        # A task looks at a topic when it first writes to it: the one before may have written the last row.
        db.execute("insert into other select max(id) + 1 from other")
        return list(worker.task("shop")["metrics"].get("incomplete_topics", ()))

    worker.wait(lambda: named() == [other], "the warning")


@pytest.mark.sampled(3, "compacted")
def test_a_table_whose_records_a_broker_refuses_is_held_back_and_the_others_go_on(worker, db, kafka):
    """The topic is compacted only once the task has looked at it: the broker is the first to know."""
    db.execute("create table emptied(id int primary key); create table other(id int primary key)")
    db.execute("insert into emptied values (1); insert into other values (1)")
    worker.put("shop", config_of(db, worker))
    emptied, other = f"{worker.prefix}.public.emptied", f"{worker.prefix}.public.other"
    worker.wait(lambda: changes(worker, other) == [("r", 1)], "the rows")
    worker.wait(lambda: changes(worker, emptied) == [("r", 1)], "the rows")
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    compact = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, emptied, incremental_configs=[compact])
    admin.incremental_alter_configs([resource])[resource].result(30)
    db.execute("truncate emptied; insert into other values (2)")
    worker.wait(lambda: changes(worker, other) == [("r", 1), ("c", 2)], "the other table")
    (held,) = worker.wait(lambda: worker.task("shop")["metrics"]["quarantine"], "the quarantine")
    assert (held["table"], held["code"]) == ("public.emptied", "kafka.record_refused")
    assert worker.task("shop")["state"] == "RUNNING"


@pytest.mark.sampled(3, "compacted")
def test_a_table_without_a_key_is_held_back_from_its_compacted_topic(worker, db):
    """Records of the default format, which the native core writes itself."""
    db.execute("create table bare(a int); create table other(id int primary key)")
    db.execute("alter table bare replica identity full")
    config = config_of(db, worker, **{POLICY: "compact"})
    worker.put("shop", {name: value for name, value in config.items() if ".converter" not in name})
    other = f"{worker.prefix}.public.other"
    worker.wait(lambda: worker.task("shop")["state"] == "RUNNING", "the task")
    db.execute("insert into bare values (1); insert into other values (1)")
    # Its row comes twice, as a change and as a read one, when it was written before its table's turn in the snapshot.
    worker.wait(lambda: worker.read(other), "the other table")
    (held,) = worker.wait(lambda: worker.task("shop")["metrics"]["quarantine"], "the quarantine")
    assert (held["table"], held["code"]) == ("public.bare", "source.record_without_key")
