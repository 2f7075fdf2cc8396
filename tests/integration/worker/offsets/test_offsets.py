"""Offsets altered over REST on a real broker and a real warehouse, with tasks that were running a moment ago."""

from __future__ import annotations

import json
import os
import signal
import uuid
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psycopg
import pytest
from cdcworker.connectors.api.sink import LedgerAccess
from cdcworker.connectors.spark.connector import SparkSink
from cdcworker.connectors.warehouses.postgres.ledger import PostgresLedger
from cdcworker.coordinator.model import Connector
from cdcworker.schemas.decode import RecordDecoder
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.offsets.sink import SinkOffsetsClient

from tests import plain_http
from tests.integration import one_worker


@pytest.fixture
def worker(kafka, tmp_path):
    made = one_worker.Worker(
        tmp_path, kafka.bootstrap, f"o{uuid.uuid4().hex[:8]}", **{"file.connector.paths": str(tmp_path)}
    )
    made.wait_ready()
    yield made
    made.kill()


def ask(worker, method, path, body=None):
    """Until the tasks are gone, and fenced, the worker asks to come back."""

    def answered():
        answer = plain_http.request(method, worker.url + path, json=body, timeout=60.0)
        return None if answer.status_code == 409 else answer

    return worker.wait(answered, f"{method} {path}")


def offsets(worker, name):
    return worker.get(f"/connectors/{name}/offsets")["offsets"]


@pytest.mark.kafka
def test_a_source_goes_on_where_it_is_told_and_a_frozen_task_cannot_take_it_back(worker):
    prefix = f"p{worker.group}"
    config = {"connector.class": "datagen", "topic.prefix": prefix, "tasks.max": "2", "rows.per.second": "200"}
    worker.put("gen", config)
    worker.wait_state("gen", "RUNNING", 1)
    worker.wait(lambda: len(offsets(worker, "gen")) == 2, "positions")
    place = {"server": prefix, "task": 0}
    refused = plain_http.patch(
        f"{worker.url}/connectors/gen/offsets?details=true",
        json={"offsets": [{"partition": place, "offset": None}]},
        timeout=30.0,
    )
    assert (refused.status_code, refused.json()["code"]) == (400, "rest.not_stopped")
    # This one wakes long after it has been stopped, with a transaction of its own half done.
    frozen = worker.starts("gen-0")[-1]
    os.kill(frozen, signal.SIGSTOP)
    assert ask(worker, "PUT", "/connectors/gen/stop").status_code == 204
    change = {"offsets": [{"partition": place, "offset": {"v": 1, "next": 1_000_000}}]}
    assert ask(worker, "PATCH", "/connectors/gen/offsets", change).json()["message"].endswith("altered successfully")
    worker.wait(lambda: not Path(f"/proc/{frozen}").exists() or os.kill(frozen, signal.SIGCONT), "the end of the task")
    found = {item["partition"]["task"]: item["offset"]["next"] for item in offsets(worker, "gen")}
    assert found[0] == 1_000_000
    assert 0 < found[1] < 1_000_000
    assert ask(worker, "PUT", "/connectors/gen/resume").status_code == 202
    worker.wait(lambda: offsets(worker, "gen")[0]["offset"]["next"] > 1_000_000, "rows after the new position")
    assert ask(worker, "PUT", "/connectors/gen/stop").status_code == 204
    assert ask(worker, "DELETE", "/connectors/gen/offsets").json()["message"].endswith("reset successfully")
    assert offsets(worker, "gen") == []
    decoder = RecordDecoder(worker.schemas())
    rows = [decoder.decode(message.value())["after"]["n"] for message in worker.read(f"{prefix}.task0.rows")]
    jump = rows.index(1_000_000)
    assert rows[:jump] == list(range(jump))
    assert rows[jump:] == list(range(1_000_000, 1_000_000 + len(rows) - jump))


@pytest.mark.kafka
def test_a_file_sink_reads_again_what_its_ledger_forgets(worker, tmp_path):
    there, back, topic = tmp_path / "in.txt", tmp_path / "out.txt", f"lines-{worker.group}"
    there.write_text("a\nb\nc\n")
    worker.put("in", {"connector.class": "file", "file": str(there), "topic": topic})
    worker.put("out", {"connector.class": "file-sink", "file": str(back), "topics": topic})
    worker.wait(lambda: back.exists() and back.read_text() == "a\nb\nc\n", "the lines")
    assert offsets(worker, "in")[0]["partition"] == {"filename": str(there)}
    assert ask(worker, "PUT", "/connectors/out/stop").status_code == 204
    place = {"kafka_partition": 0, "kafka_topic": topic}
    (found,) = offsets(worker, "out")
    assert found["partition"] == place
    missing = {"offsets": [{"partition": {**place, "kafka_partition": 7}, "offset": {"kafka_offset": 1}}]}
    assert (
        ask(worker, "PATCH", "/connectors/out/offsets?details=true", missing).json()["code"]
        == "offsets.unknown_partition"
    )
    change = {"offsets": [{"partition": place, "offset": {"kafka_offset": "1"}}]}
    assert ask(worker, "PATCH", "/connectors/out/offsets", change).status_code == 200
    assert offsets(worker, "out") == [{"partition": place, "offset": {"kafka_offset": 1}}]
    assert ask(worker, "PUT", "/connectors/out/resume").status_code == 202
    worker.wait(lambda: back.read_text() == "a\nb\nc\nb\nc\n", "the lines again")


# -- the ledger in a warehouse -----------------------------------------------------------------------------------------


@pytest.fixture
def warehouse(postgres):
    name = postgres.create_database()
    parts = urlsplit(postgres.dsn(name))
    sink = SparkSink(
        {
            "connector.class": "spark",
            "topics": "t",
            "warehouse.hostname": parts.hostname or "",
            "warehouse.port": str(parts.port),
            "warehouse.user": unquote(parts.username or ""),
            "warehouse.password": unquote(parts.password or ""),
            "warehouse.dbname": name,
        }
    )
    yield sink, postgres.dsn(name)
    postgres.drop_database(name)


def rows(dsn, text):
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(text).fetchall()


@pytest.mark.postgres
def test_the_ledger_of_a_warehouse_is_altered_behind_the_fence_of_its_tasks(warehouse):
    sink, dsn = warehouse
    assert sink.offsets(LedgerAccess("s")) == {}
    sink.alter_offsets(LedgerAccess("s", (5, 0)), None)
    with psycopg.connect(dsn) as connection:
        ledger = PostgresLedger("s", 0)
        ledger.fence(connection, (7, 2))
    rows(
        dsn,
        "insert into _cdcworker.ledger values ('s','t',0,10,'\\x01',1,1,7,2,now()), ('s','t',1,11,'\\x01',1,1,7,2,now()), "
        "('other','t',0,12,'\\x01',1,1,7,2,now()) returning 1",
    )
    changes = {("t", 0): 3, ("t", 1): None, ("t", 2): 0}
    with pytest.raises(CdcError, match=r"spark\.fenced"):
        sink.alter_offsets(LedgerAccess("s", (7, 1)), changes)
    assert sink.offsets(LedgerAccess("s")) == {("t", 0): 10, ("t", 1): 11}
    sink.alter_offsets(LedgerAccess("s", (8, 0)), changes)
    assert sink.offsets(LedgerAccess("s")) == {("t", 0): 3, ("t", 2): 0}
    assert sink.offsets(LedgerAccess("other")) == {("t", 0): 12}
    assert rows(dsn, "select task_epoch, attempt from _cdcworker.fence") == [(8, 0)]
    assert set(rows(dsn, "select applied, task_epoch from _cdcworker.ledger where sink = 's'")) == {(None, 8)}
    with psycopg.connect(dsn) as connection, pytest.raises(CdcError, match=r"spark\.fenced"):
        ledger.fence(connection, (7, 3))
    with psycopg.connect(dsn) as connection:
        PostgresLedger("s", 0).fence(connection, (9, 0))
    sink.alter_offsets(LedgerAccess("other", (8, 0)), None)
    assert json.dumps(rows(dsn, "select count(*) from _cdcworker.ledger")) == "[[2]]"


@pytest.mark.postgres
def test_a_child_reads_the_ledger_and_shows_no_password(warehouse):
    sink, _ = warehouse
    sink.alter_offsets(LedgerAccess("s", (5, 0)), {("t", 0): 9})
    config = dict(sink._config)
    kept = SinkOffsetsClient({}, lambda: {"t": 1})
    (found,) = kept.read(Connector("s", "i", 1, config, "STOPPED", "sink"))
    assert (found.partition, found.offset) == ({"kafka_topic": "t", "kafka_partition": 0}, {"kafka_offset": 9})
    wrong = Connector("s", "i", 1, {**config, "warehouse.password": "Wr0ngPa55"}, "STOPPED", "sink")
    with pytest.raises(CdcError, match=r"\[spark\.target_auth\]") as caught:
        kept.read(wrong)
    assert "Wr0ngPa55" not in str(caught.value)


@pytest.mark.postgres
def test_a_batch_under_way_is_waited_for_and_not_for_ever(warehouse):
    sink, dsn = warehouse
    sink.alter_offsets(LedgerAccess("s", (5, 0)), None)
    with psycopg.connect(dsn) as connection:
        PostgresLedger("s", 0).fence(connection, (6, 0))
        connection.commit()
        connection.execute("select from _cdcworker.fence for share")
        with pytest.raises(CdcError, match=r"spark\.ledger_busy"):
            sink.alter_offsets(LedgerAccess("s", (7, 0)), None)
