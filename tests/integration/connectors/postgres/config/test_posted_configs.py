"""Configurations as they are posted elsewhere, run by a real worker: their topics hold what Debezium would write."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cdcworker.schemas.decode import RecordDecoder
from psycopg.conninfo import conninfo_to_dict

from tests.integration import one_worker

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.sampled(2)]

DATA = Path(__file__).parents[4] / "unit" / "connectors" / "postgres" / "config" / "data"

TABLES = """
create schema inventory;
create table inventory.products (id int primary key, name varchar(40) not null, weight real);
create table customers (
    id int primary key, name varchar(40) not null default 'none', email text, balance numeric(10,2), rate numeric,
    born date, created timestamp, updated timestamptz, extra jsonb, uid uuid, tags text[], photo bytea, small int2,
    score double precision
);
create table orders (id bigint primary key, item text, amount numeric(8,2));
insert into inventory.products values (1, 'bolt', 1.5);
insert into customers values (
    1001, 'Sally "S"', null, 12.34, 0.5, '2000-01-02', '2020-01-02 03:04:05.000006', '2020-01-02 03:04:05.600001+02',
    '{"a": 1}', 'b68a35a7-17ad-35b3-af2a-ae46edb4545a', '{x,null}', '\\xffd800', 7, 'NaN'
);
insert into orders values (1, 'rope', 9.99);
"""
CHANGES = """
update orders set item = 'cord' where id = 1;
delete from orders where id = 1;
update customers set email = 'sally@example.org' where id = 1001;
insert into inventory.products values (2, 'nut', null);
delete from inventory.products where id = 1;
"""
CUSTOMER = {
    "id": 1001, "name": 'Sally "S"', "email": None, "balance": "BNI=", "rate": {"scale": 1, "value": "BQ=="},
    "born": 10958, "created": 1577934245000006, "updated": "2020-01-02T01:04:05.600001Z", "extra": '{"a": 1}',
    "uid": "b68a35a7-17ad-35b3-af2a-ae46edb4545a", "tags": ["x", None], "photo": "/9gA", "small": 7, "score": "NaN",
}  # fmt: skip
CUSTOMER_FIELDS = [
    {"type": "int32", "optional": False, "field": "id"},
    {"type": "string", "optional": False, "default": "none", "field": "name"},
    {"type": "string", "optional": True, "field": "email"},
    {"type": "bytes", "optional": True, "name": "org.apache.kafka.connect.data.Decimal", "version": 1,
     "parameters": {"scale": "2", "connect.decimal.precision": "10"}, "field": "balance"},
    {"type": "struct", "fields": [{"type": "int32", "optional": False, "field": "scale"},
                                  {"type": "bytes", "optional": False, "field": "value"}],
     "optional": True, "name": "io.debezium.data.VariableScaleDecimal", "version": 1,
     "doc": "Variable scaled decimal", "field": "rate"},
    {"type": "int32", "optional": True, "name": "io.debezium.time.Date", "version": 1, "field": "born"},
    {"type": "int64", "optional": True, "name": "io.debezium.time.MicroTimestamp", "version": 1, "field": "created"},
    {"type": "string", "optional": True, "name": "io.debezium.time.ZonedTimestamp", "version": 1, "field": "updated"},
    {"type": "string", "optional": True, "name": "io.debezium.data.Json", "version": 1, "field": "extra"},
    {"type": "string", "optional": True, "name": "io.debezium.data.Uuid", "version": 1, "field": "uid"},
    {"type": "array", "items": {"type": "string", "optional": True}, "optional": True, "field": "tags"},
    {"type": "bytes", "optional": True, "field": "photo"},
    {"type": "int16", "optional": True, "field": "small"},
    {"type": "double", "optional": True, "field": "score"},
]  # fmt: skip
SOURCE_FIELDS = [
    *("version", "connector", "name", "ts_ms", "snapshot", "db", "sequence", "ts_us", "ts_ns", "schema", "table"),
    *("txId", "lsn", "xmin", "origin", "origin_lsn", "commit_lsn", "tx_index", "tx_sub"),
]


@pytest.fixture
def database(postgres):
    name = postgres.create_database()
    yield name
    postgres.drop_database(name)


class Posted:
    """A worker, and connectors posted to it; only places and names are this test's own."""

    def __init__(self, worker: Any, dsn: str) -> None:
        self.worker, self._dsn = worker, conninfo_to_dict(dsn)

    def post(self, name: str, **more: str) -> str:
        """A setting of "" takes the key out."""
        body = json.loads((DATA / f"{name}.json").read_text())["posted"]
        where = {
            "database.hostname": self._dsn["host"], "database.port": str(self._dsn.get("port", 5432)),
            "database.user": self._dsn["user"], "database.password": self._dsn.get("password") or "none",
            "database.dbname": self._dsn["dbname"], "slot.name": f"{name}_{os.getpid()}", "publication.name": name,
            "topic.prefix": f"{self.worker.group}-{name}",
        }  # fmt: skip
        # The registries that these configurations name are none of this test's.
        at = ("key.converter.schema.registry.", "value.converter.schema.registry.")
        where |= {f"{begin}ids": "own" for begin in at if f"{begin}url" in body["config"]}
        config = {key: text for key, text in {**body["config"], **where, **more}.items() if text != ""}
        self.worker.put(name, config)
        return config.get("topic.prefix", "")

    def records(self, topic: str, count: int) -> list[Any]:
        def there() -> Any:
            found = self.worker.read(topic)
            return found if len(found) >= count else None

        return self.worker.wait(there, f"{count} records in {topic}")


@pytest.fixture
def posted(kafka, postgres, database, tmp_path):
    worker = one_worker.Worker(tmp_path, kafka.bootstrap, f"p{uuid.uuid4().hex[:8]}")
    worker.wait_ready()
    yield Posted(worker, postgres.dsn(database))
    assert worker.end() == 0


def test_posted_configurations_write_what_debezium_writes(posted, postgres, database):
    worker = posted.worker
    with psycopg.connect(postgres.dsn(database), autocommit=True) as db:
        db.execute(TABLES)
        json_prefix = posted.post("tutorial_json")
        flat_prefix = posted.post("unwrap_json")
        avro_prefix = posted.post("tutorial_avro")
        posted.post(
            "unwrap_route",
            **{"transforms.route.replacement": f"{worker.group}-$3", "table.include.list": "public.orders"},
        )
        check_the_others(posted, post_the_others(posted, db))
        first = posted.records(f"{json_prefix}.public.customers", 1)
        flat_first = posted.records(f"{flat_prefix}.public.orders", 1)
        posted.records(f"{avro_prefix}.inventory.products", 1)
        posted.records(f"{worker.group}-orders", 1)
        for statement in CHANGES.strip().splitlines():
            db.execute(statement)
    check_json(first + posted.records(f"{json_prefix}.public.customers", 2)[1:], f"{json_prefix}.public.customers")
    check_flat(flat_first + posted.records(f"{flat_prefix}.public.orders", 4)[1:])
    check_avro(posted.records(f"{avro_prefix}.inventory.products", 4), RecordDecoder(worker.schemas()))
    check_routed(posted.records(f"{worker.group}-orders", 4), RecordDecoder(worker.schemas()))
    assert not [subject for subject in worker.schemas().subjects() if subject.startswith((json_prefix, flat_prefix))]


OTHER_TABLES = """
create table accounts (id int primary key, owner text);
create table payments (id int primary key, amount numeric(8,2));
create table users (id int primary key, name text, password_hash text);
create table flyway_schema_history (id int primary key);
create table products (id int primary key, name text);
create schema ems;
create table ems.event (id int primary key, title text, price numeric(8,2));
create publication app_cdc for table accounts, payments;
insert into accounts values (1, 'ann');
insert into payments values (1, 1.25);
insert into users values (1, 'bob', 'secret');
insert into flyway_schema_history values (1);
insert into products values (1, 'bolt');
insert into ems.event values (1, 'gala', 2.50);
"""
"""What the other configurations capture."""


def post_the_others(posted: Posted, db: Any) -> dict[str, str]:
    """Those that the test does not compare in full, and the first from before Debezium 2. Prefixes by name."""
    for statement in OTHER_TABLES.strip().split(";"):
        if statement.strip():
            db.execute(statement)
    former = f"{posted.worker.group}-former"
    posted.post("tutorial", **{"database.server.name": former, "topic.prefix": ""})
    plain = {"database.sslmode": "prefer", "topic.creation.default.replication.factor": "1"}
    return {
        "tutorial": former,
        "compose_tuned": posted.post("compose_tuned"),
        "helm_signals": posted.post("helm_signals", **{"publication.name": "app_cdc"}),
        "ksqldb_avro": posted.post("ksqldb_avro", **plain),
        "msk_apicurio": posted.post("msk_apicurio"),
        "strimzi": posted.post("strimzi", **plain),
    }


def check_the_others(posted: Posted, prefixes: dict[str, str]) -> None:
    def found(name: str, table: str) -> list[Any]:
        return posted.records(f"{prefixes[name]}.{table}", 1)

    def decoded(record: Any) -> Any:
        return RecordDecoder(posted.worker.schemas()).decode(record.value())

    assert decoded(found("tutorial", "inventory.products")[0])["after"]["name"] == "bolt"
    user = json.loads(found("compose_tuned", "public.users")[0].value())
    assert user["after"] == {"id": 1, "name": "bob"}
    assert json.loads(found("compose_tuned", "public.payments")[0].value())["after"]["amount"] == "1.25"
    payment = json.loads(found("helm_signals", "public.payments")[0].value())["payload"]
    assert (payment["id"], payment["cdc_operation"], type(payment["cdc_source_commit_lsn"])) == (1, "r", int)
    customer = found("ksqldb_avro", "public.customers")[0]
    assert dict(customer.headers())["__op"] == b"r"
    assert decoded(customer)["name"] == 'Sally "S"'
    event = decoded(found("msk_apicurio", "ems.event")[0])
    assert (event["title"], event["price"], event["__op"], event["__deleted"]) == ("gala", 2.5, "r", "false")
    product = json.loads(found("strimzi", "public.products")[0].value())
    assert (product["op"], product["after"]) == ("r", {"id": 1, "name": "bolt"})


def check_json(records: list[Any], topic: str) -> None:
    key = {"type": "struct", "fields": [CUSTOMER_FIELDS[0]], "optional": False, "name": f"{topic}.Key"}
    read, update = [json.loads(record.value()) for record in records]
    assert {record.key() for record in records} == {
        json.dumps({"schema": key, "payload": {"id": 1001}}, separators=(",", ":")).encode()
    }
    assert read["schema"] == update["schema"]
    fields = {field["field"]: field for field in read["schema"]["fields"]}
    assert list(fields) == ["before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns"]
    row = {"type": "struct", "fields": CUSTOMER_FIELDS, "optional": True, "name": f"{topic}.Value", "field": "after"}
    assert json.dumps(fields["after"]) == json.dumps(row)
    assert (read["schema"]["name"], read["schema"]["optional"]) == (f"{topic}.Envelope", False)
    assert [field["field"] for field in fields["source"]["fields"]] == SOURCE_FIELDS
    assert (read["payload"]["op"], read["payload"]["before"]) == ("r", None)
    assert list(read["payload"]["after"].items()) == list(CUSTOMER.items())
    assert update["payload"]["op"] == "u"
    assert update["payload"]["after"] == {**CUSTOMER, "email": "sally@example.org"}
    assert list(update["payload"]["source"]) == SOURCE_FIELDS


def check_flat(records: list[Any]) -> None:
    assert [record.key() for record in records] == [b'{"id":1}'] * 4
    values = [json.loads(record.value()) for record in records[:3]]
    assert records[3].value() is None
    assert [list(value) for value in values] == [
        ["id", "item", "amount", "__op", "__table", "__lsn", "__source_ts_ms", "__deleted"]
    ] * 3
    assert [(value["item"], value["__op"], value["__deleted"]) for value in values] == [
        ("rope", "r", "false"), ("cord", "u", "false"), (None, "d", "true")
    ]  # fmt: skip
    assert values[0]["amount"] == "A+c="


def check_avro(records: list[Any], decoder: RecordDecoder) -> None:
    changes = [decoder.decode(record.value()) for record in records[:3]]
    assert records[3].value() is None
    assert [(change["op"], change["after"] and change["after"]["id"]) for change in changes] == [
        ("r", 1), ("c", 2), ("d", None)
    ]  # fmt: skip


def check_routed(records: list[Any], decoder: RecordDecoder) -> None:
    """`none` makes the deletion itself a tombstone, and the source's own tombstone follows."""
    assert [decoder.decode(record.value()) for record in records[:2]] == [
        {"id": 1, "item": "rope", "amount": 9.99}, {"id": 1, "item": "cord", "amount": 9.99}
    ]  # fmt: skip
    assert [record.value() for record in records[2:]] == [None, None]
