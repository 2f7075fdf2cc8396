"""Positions that no task could start from are refused when they are written, and a deleted connector says, or drops, what it
leaves: on a real worker and a real PostgreSQL."""

from __future__ import annotations

import json
import uuid
from typing import Any

import httpx
import psycopg
import pytest
from cdcworker.worker.cli.commands.connectors.connector import connector
from click.testing import CliRunner
from psycopg.conninfo import conninfo_to_dict

from tests import plain_http
from tests.integration import one_worker

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def one(kafka, tmp_path_factory):
    made = one_worker.Worker(tmp_path_factory.mktemp("worker"), kafka.bootstrap, f"d{uuid.uuid4().hex[:8]}")
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
        connection.execute("create table t(id int primary key, v text); insert into t values (0, 'row')")
        yield connection
        connection.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s and not active",
            (name,),
        )
    postgres.drop_database(name)


def config_of(db, worker: Any, **more: str) -> dict[str, str]:
    where = conninfo_to_dict(db.info.dsn)
    return {
        "connector.class": "postgres",
        "database.hostname": str(where["host"]),
        "database.port": str(where["port"]),
        "database.user": str(where["user"]),
        "database.password": db.info.password,
        "database.dbname": str(where["dbname"]),
        "slot.name": f"left_{where['dbname']}",
        "publication.name": "left_pub",
        "topic.prefix": worker.prefix,
        **more,
    }


def ask(worker: Any, method: str, path: str, body: Any = None) -> httpx.Response:
    """Until the tasks are gone, and fenced, the worker asks to come back."""

    def answered() -> httpx.Response | None:
        answer = plain_http.request(method, worker.url + path, json=body, timeout=60.0)
        return None if answer.status_code == 409 else answer

    return worker.wait(answered, f"{method} {path}")


def offset(worker: Any) -> dict[str, Any]:
    """The one of this test: a connector of the same name may have left others."""
    found = worker.get("/connectors/shop/offsets")["offsets"]
    return next((one for one in found if worker.prefix in one["partition"].values()), {})


def slots(db) -> list[str]:
    rows = db.execute("select slot_name from pg_replication_slots where database = current_database()").fetchall()
    return [row[0] for row in rows]


def publications(db) -> list[str]:
    return [row[0] for row in db.execute("select pubname from pg_publication").fetchall()]


def running(worker: Any, db, **more: str) -> dict[str, str]:
    config = config_of(db, worker, **more)
    worker.put("shop", config)
    worker.wait(lambda: (worker.task("shop")["metrics"] or {}).get("records"), "the row")
    worker.wait(lambda: offset(worker), "a position")
    return config


@pytest.mark.sampled(2, "positions")
def test_a_position_that_the_server_has_given_up_is_refused_when_it_is_written(worker, db):
    running(worker, db)
    old = offset(worker)
    db.execute("insert into t select g, 'new' from generate_series(1, 100) g")
    worker.wait(lambda: len(worker.read(f"{worker.prefix}.public.t")) == 101, "the rows")
    confirmed = "select confirmed_flush_lsn > %s::pg_lsn from pg_replication_slots where database = current_database()"
    at = f"{old['offset']['safe_lsn'] >> 32:X}/{old['offset']['safe_lsn'] & 0xFFFFFFFF:X}"
    worker.wait(lambda: db.execute(confirmed, (at,)).fetchone() == (True,), "the confirmation")
    assert ask(worker, "PUT", "/connectors/shop/stop").status_code == 204
    worker.wait(lambda: worker.get("/connectors/shop/status")["tasks"] == [], "the last position")
    now = offset(worker)
    answer = ask(worker, "PATCH", "/connectors/shop/offsets", {"offsets": [now]})
    assert answer.status_code == 200, f"what was just read: {answer.text}"
    for path in ("/connectors/shop/offsets?dry_run=true&details=true", "/connectors/shop/offsets?details=true"):
        refused = ask(worker, "PATCH", path, {"offsets": [old]})
        assert refused.status_code == 400, refused.text
        found = refused.json()
        assert (found["code"], found["configPath"]) == ("offsets.bad_position", "/offsets/0/offset")
        assert "postgres.slot_" in found["message"]
        assert "confirmed up to" in found["suggestion"]
    ahead = {**now, "offset": {**now["offset"], "safe_lsn": now["offset"]["safe_lsn"] + (1 << 40)}}
    assert "ends before" in ask(worker, "PATCH", "/connectors/shop/offsets", {"offsets": [ahead]}).json()["message"]
    assert offset(worker) == now
    assert ask(worker, "PUT", "/connectors/shop/resume").status_code == 202
    db.execute("insert into t values (200, 'after')")
    worker.wait(lambda: len(worker.read(f"{worker.prefix}.public.t")) == 102, "what comes next, once")


@pytest.mark.sampled(2, "positions")
def test_a_stopped_source_goes_on_at_another_place_and_says_what_is_missed(worker, db):
    running(worker, db)
    worker.wait(lambda: "loads" not in offset(worker)["offset"]["snapshot"], "the snapshot's end")
    assert ask(worker, "PUT", "/connectors/shop/stop").status_code == 204
    # The answer waits for the task's end.
    answer = ask(worker, "PATCH", "/connectors/shop/offsets?dry_run=true", {"to": "now"})
    assert answer.status_code == 200, answer.text
    db.execute("insert into t values (1, 'skipped'), (2, 'skipped')")
    db.execute("insert into t values (3, 'comes')")
    before = offset(worker)

    def alter(*options: str) -> str:
        done = CliRunner().invoke(connector, ["--url", worker.url, "offsets", "alter", "shop", *options])
        assert done.exit_code == 0, done.output
        return done.output

    assert "is missed, with 2 changes" in alter("--to", "skip", "--dry-run")
    assert "2 transactions with 3 changes are missed" in alter("--to", "now", "--dry-run")
    assert offset(worker) == before, "a dry run changes nothing"
    refused = ask(worker, "PATCH", "/connectors/shop/offsets?details=true", {"to": "0/1"})
    assert (refused.status_code, refused.json()["code"], refused.json()["configPath"]) == (
        400,
        "offsets.bad_position",
        "/to",
    )
    assert "postgres.place_not_there" in refused.json()["message"]
    assert "is missed, with 2 changes" in alter("--to", "skip")
    assert ask(worker, "PUT", "/connectors/shop/resume").status_code == 202
    db.execute("insert into t values (4, 'after')")
    worker.wait(lambda: len(worker.read(f"{worker.prefix}.public.t")) == 3, "what comes next")
    # An Avro int at the key's end: its zigzag form is twice the number.
    assert sorted(message.key()[-1] // 2 for message in worker.read(f"{worker.prefix}.public.t")) == [0, 3, 4]


@pytest.mark.sampled(2, "positions")
def test_where_the_database_is_away_a_position_is_taken_with_a_warning(worker, db):
    config = running(worker, db)
    assert ask(worker, "PUT", "/connectors/shop/stop").status_code == 204
    now = offset(worker)
    path = "/connectors/shop/config?validate=false"
    assert ask(worker, "PUT", path, {**config, "database.port": "1"}).status_code == 200
    answer = ask(worker, "PATCH", "/connectors/shop/offsets", {"offsets": [now]})
    assert answer.status_code == 200
    assert "not checked against the database" in answer.headers["X-CDC-Warning"]


@pytest.mark.sampled(2, "positions")
def test_a_deleted_connector_says_what_it_leaves(worker, db):
    config = running(worker, db)
    assert ask(worker, "PUT", "/connectors/shop/stop").status_code == 204
    assert ask(worker, "PUT", "/connectors/shop/topics/reset").status_code == 202
    assert worker.get("/connectors/shop/topics") == {"shop": {"topics": []}}
    answer = ask(worker, "DELETE", "/connectors/shop")
    assert (answer.status_code, answer.content) == (204, b"")
    left = json.loads(answer.headers["X-CDC-Left"])
    assert (left["slot"], left["publication"]) == ([config["slot.name"]], ["left_pub"])
    assert f"{worker.prefix}.public.t" in left["topics"]
    assert slots(db) == [config["slot.name"]]
    told = [line for line in worker.log.read_text().splitlines() if "connector deleted connector=shop left=" in line]
    assert config["slot.name"] in told[-1]


@pytest.mark.sampled(2, "positions")
def test_slot_and_publication_are_dropped_once_the_task_has_ended(worker, db):
    running(worker, db)
    assert plain_http.delete(f"{worker.url}/connectors/shop?drop=tables", timeout=30).status_code == 400
    dry = plain_http.delete(f"{worker.url}/connectors/shop?drop=slot&dry_run=true", timeout=30)
    assert dry.json()["effect"] == "deleted"
    assert slots(db)
    answer = ask(worker, "DELETE", "/connectors/shop?drop=slot,publication")
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert [item["kind"] for item in found["dropped"]] == ["slot", "publication"]
    assert (found["refused"], set(found["left"])) == ([], {"topics"})
    assert (slots(db), publications(db)) == ([], [])
    assert worker.get("/connectors") == []


@pytest.mark.sampled(2, "positions")
def test_the_command_line_drops_what_it_is_told_to(worker, db):
    config = running(worker, db)

    def delete(*options: str) -> str:
        done = CliRunner().invoke(connector, ["--url", worker.url, "delete", "shop", *options])
        assert done.exit_code == 0, done.output
        return done.output

    assert "slot" in delete("--drop", "slot", "--dry-run")
    assert slots(db) == [config["slot.name"]], "a dry run drops nothing"
    assert CliRunner().invoke(connector, ["--url", worker.url, "delete", "shop", "--drop", "tables"]).exit_code == 2
    told = delete("--drop", "slot", "--drop", "slot")
    assert "deleted shop" in told
    assert "left_pub" in told, "what stays is told"
    assert (slots(db), publications(db)) == ([], ["left_pub"])
    assert worker.get("/connectors") == []


@pytest.mark.sampled(2, "positions")
def test_a_position_to_begin_with_that_nobody_could_check_is_taken_with_a_warning(worker, db):
    config = running(worker, db)
    now = offset(worker)
    assert ask(worker, "DELETE", "/connectors/shop").status_code == 204
    body = {
        "name": "shop",
        "config": {**config, "database.port": "1"},
        "initial_offsets": [now],
        "initial_state": "STOPPED",
    }
    answer = ask(worker, "POST", "/connectors?validate=false", body)
    assert answer.status_code == 201, answer.text
    assert "not checked against the database" in answer.headers["X-CDC-Warning"]


@pytest.mark.sampled(2, "positions")
def test_what_cannot_be_dropped_is_told_and_the_rest_goes(worker, db):
    config = running(worker, db)
    other = {**config, "slot.name": "another_slot", "table.include.list": "public.t"}
    assert ask(worker, "POST", "/connectors", {"name": "other", "config": other, "initial_state": "STOPPED"}).is_success
    answer = ask(worker, "DELETE", "/connectors/shop?drop=slot,publication")
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert [item["kind"] for item in found["dropped"]] == ["slot"]
    (refused,) = found["refused"]
    assert (refused["kind"], refused["error"]["code"]) == ("publication", "postgres.still_used")
    assert (slots(db), publications(db)) == ([], ["left_pub"])
    assert found["left"]["publication"] == ["left_pub"]
    assert worker.get("/connectors") == ["other"]
