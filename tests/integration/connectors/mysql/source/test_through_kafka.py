"""MariaDB through a whole worker into Kafka, by REST alone: each row once and in order, whatever is killed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from cdcworker.schemas.decode import RecordDecoder

from tests import plain_http
from tests.integration import one_worker

from ..logged import LoggedServer
from .reading import config_of
from .submitted import Source

pytestmark = [pytest.mark.kafka, pytest.mark.mysql]
ROWS = 1_500
PLACE = ("commit_lsn", "tx_index", "tx_sub")


def rows_of(records: list[Any]) -> dict[Any, Any]:
    """What a reader has after all records, which come in order."""
    found: dict[Any, Any] = {}
    for record in records:
        if record["op"] == "d":
            found.pop(record["before"]["id"], None)
        else:
            found[record["after"]["id"]] = record["after"]["v"]
    return found


def assert_rising(records: list[Any]) -> None:
    places = [tuple(record["source"][name] for name in PLACE) for record in records]
    assert all(one < other for one, other in pairwise(places))


def test_each_change_is_there_once_and_in_order_whatever_is_killed(
    worker: one_worker.Worker, shop: LoggedServer
) -> None:
    shop.ask("create table shop.t (id int primary key, v varchar(40))")
    shop.ask("insert into shop.t values " + ",".join(f"({n}, 'v{n}')" for n in range(ROWS)))
    small = {"snapshot.chunk.max.bytes": "4096", "snapshot.inflight.max.bytes": "8192"}
    source = Source(worker, shop, "once", **small)
    made = 0

    def write(count: int) -> None:
        nonlocal made
        statements = []
        for n in range(made, made + count):
            statements += [
                "begin",
                f"insert into shop.t values ({ROWS + n}, 'new{n}')",
                f"update shop.t set v = concat(v, '.') where id = {n % 100}",
                f"delete from shop.t where id = {ROWS - 1 - n}",
                "commit",
            ]
        shop.ask(*statements)
        made += count

    # What is written before the first position is stored may come as rows of the snapshot alone.
    worker.wait(lambda: source.ask("GET", "/offsets")["offsets"], "a stored position")
    write(20)
    for _ in range(3):
        source.kill()
        write(20)
    records = source.wait_for("t", "cud", 3 * made)
    worker.wait(lambda: _loaded(source), "the snapshot")
    records = source.records("t")
    assert_rising(records)
    streamed = [record for record in records if record["op"] != "r"]
    assert [r["op"] for r in streamed].count("c") == [r["op"] for r in streamed].count("d") == made
    assert [r["after"]["id"] for r in streamed if r["op"] == "c"] == [ROWS + n for n in range(made)]
    assert [r["before"]["id"] for r in streamed if r["op"] == "d"] == [ROWS - 1 - n for n in range(made)]
    assert rows_of(records) == dict(shop.ask("select id, v from shop.t"))
    read = [record["after"]["id"] for record in records if record["op"] == "r"]
    assert len(set(read)) == len(read)


def _loaded(source: Source) -> bool:
    (offset,) = source.ask("GET", "/offsets")["offsets"]
    progress = offset["offset"].get("snapshot", {})
    return bool(progress.get("loaded")) and not progress.get("loads")


def test_it_is_paused_stopped_written_back_and_deleted_by_rest(worker: one_worker.Worker, shop: LoggedServer) -> None:
    shop.ask("create table shop.t (id int primary key, v varchar(40))", "insert into shop.t values (1, 'a')")
    tag = {"type": "org.apache.kafka.connect.transforms.InsertField$Value", "static.field": "site", "static.value": "x"}
    source = Source(
        worker, shop, "rest", transforms="tag", **{f"transforms.tag.{key}": text for key, text in tag.items()}
    )
    (record,) = source.wait_for("t", "r", 1)
    assert record["site"] == "x"
    source.ask("PUT", "/pause")
    worker.wait_state("rest", "PAUSED")
    shop.ask("insert into shop.t values (2, 'b')")
    source.ask("PUT", "/resume")
    source.wait_for("t", "c", 1)
    source.ask("POST", "/restart?includeTasks=true")
    shop.ask("insert into shop.t values (3, 'c')")
    source.wait_for("t", "c", 2)
    source.ask("PUT", "/stop")
    worker.wait(lambda: source.ask("GET", "/status")["connector"]["state"] == "STOPPED", "a stop")
    offsets = source.ask("GET", "/offsets")
    (stored,) = offsets["offsets"]
    assert stored["partition"] == {"server": source.prefix, "task": 0}
    assert stored["offset"]["gtids"] == str(shop.position())
    assert stored["offset"]["product"] == "mariadb"
    # One transaction back: its rows come once more, since that is what the offset says.
    shop.ask("insert into shop.t values (4, 'd')")
    source.ask("PATCH", "/offsets", offsets)
    source.ask("PUT", "/resume")
    records = source.wait_for("t", "c", 3)
    assert [record["after"]["id"] for record in records if record["op"] == "c"] == [2, 3, 4]
    source.ask("PUT", "/stop")
    worker.wait(lambda: source.ask("GET", "/status")["connector"]["state"] == "STOPPED", "a stop")
    source.ask("DELETE", "/offsets")
    assert source.ask("GET", "/offsets")["offsets"] == []
    source.ask("PUT", "/resume")
    records = source.wait_for("t", "r", 1 + 4)
    assert [record["after"]["id"] for record in records if record["op"] == "r"] == [1, 1, 2, 3, 4]
    source.ask("DELETE")
    assert "rest" not in worker.get("/connectors")


def test_a_config_that_cannot_work_is_refused_with_what_mends_it(worker: one_worker.Worker, shop: LoggedServer) -> None:
    shop.ask("create table shop.t (id int primary key)", "create or replace user poor identified by 'poor'")
    good = config_of(shop)

    def errors(**more: str) -> dict[str, list[str]]:
        config = good | {name.replace("__", "."): text for name, text in more.items()}
        plugin = config["connector.class"]
        url = f"{worker.url}/connector-plugins/{plugin}/config/validate"

        def ask() -> Any:
            answer = plain_http.put(url, json=config, timeout=60.0)
            return None if answer.status_code == 409 else answer

        answer = worker.wait(ask, "a leader")
        assert answer.status_code == 200, answer.text
        values = [one["value"] for one in answer.json()["configs"]]
        return {value["name"]: value["errors"] for value in values if value["errors"]}

    assert errors() == {}
    assert set(errors(database__password="wrong")) == {"database.password"}
    assert "mysql.authentication" in errors(database__password="wrong")["database.password"][0]
    found = errors(database__user="poor", database__password="poor")
    assert "GRANT REPLICATION SLAVE ON *.* TO 'poor'@'%'" in found["database.user"][0]
    assert "mysql.server_id_in_use" in errors(database__server__id="7")["database.server.id"][0]
    assert "mysql.other_product" in errors(connector__class="mysql")["connector.class"][0]
    assert "mysql.table_missing" in errors(table__include__list="shop.none")["table.include.list"][0]
    assert "gtid.source.includes" in errors(gtid__source__includes="x")
    shop.ask("set global binlog_format = 'STATEMENT'")
    try:
        assert "SET GLOBAL binlog_format = 'ROW'" in errors()["database.hostname"][0]
    finally:
        shop.ask("set global binlog_format = 'ROW'", "drop user poor")
    bad = {"name": "bad", "config": good | {"name": "bad", "database.password": "wrong"}}
    answer = worker.ask("POST", "/connectors", bad)
    assert answer.status_code == 400
    assert "mysql.authentication" in answer.text
    assert '"wrong"' not in answer.text


def test_statements_about_captured_tables_are_told_of_at_their_place(
    worker: one_worker.Worker, shop: LoggedServer
) -> None:
    shop.ask("create table shop.t (id int primary key, v varchar(40))", "insert into shop.t values (1, 'a')")
    source = Source(worker, shop, "told", table__include__list="shop.t")
    source.wait_for("t", "r", 1)
    shop.ask(
        "insert into shop.t values (2, 'b')",
        "alter table shop.t add column n int default 5",
        "insert into shop.t values (3, 'c', 6)",
        "create table shop.other (id int primary key)",
        "drop table shop.other",
        "create or replace user told identified by 'secret'",
        "drop user told",
        "insert into shop.t values (4, 'd', 7)",
    )
    records = source.wait_for("t", "c", 3)
    assert [record["after"].get("n") for record in records if record["op"] == "c"] == [None, 6, 7]
    decoder = RecordDecoder(worker.schemas())
    (told,) = worker.read(source.prefix)
    assert decoder.decode(told.key()) == {"databaseName": "shop"}
    value = decoder.decode(told.value())
    assert value["ddl"] == "alter table shop.t add column n int default 5"
    (change,) = value["tableChanges"]
    assert (change["type"], change["id"]) == ("ALTER", '"shop"."t"')
    assert change["table"]["primaryKeyColumnNames"] == ["id"]
    columns = [(one["name"], one["typeName"], one["length"], one["optional"]) for one in change["table"]["columns"]]
    assert columns == [("id", "INT", 11, False), ("v", "VARCHAR", 40, True), ("n", "INT", 11, True)]
    assert change["table"]["columns"][2]["defaultValueExpression"] == "5"
    places = [tuple(one["source"][name] for name in PLACE) for one in (records[1], value, records[2])]
    assert places == sorted(set(places))
