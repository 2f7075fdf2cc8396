"""Chains of transforms in sources of a real PostgreSQL, written by a real worker: what readers of Kafka have of them."""

from __future__ import annotations

import json
import os
import secrets
import signal
from typing import Any

import psycopg
import pytest
from cdcworker.schemas.decode import RecordDecoder
from confluent_kafka.admin import AdminClient
from psycopg.conninfo import conninfo_to_dict

from tests import plain_http
from tests.integration import one_worker

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]
PACKAGE = "org.apache.kafka.connect.transforms."
UNWRAP = "io.debezium.transforms.ExtractNewRecordState"
JSON = "org.apache.kafka.connect.json.JsonConverter"
TOMBSTONE = {"type": f"{PACKAGE}predicates.RecordIsTombstone"}
DEADLINE_S = 180.0
WHOLE_ROWS = {"predicate": "tombstone", "negate": "true"}


@pytest.fixture(scope="module")
def worker(kafka, tmp_path_factory):
    one = one_worker.Worker(tmp_path_factory.mktemp("worker"), kafka.bootstrap, f"smt{secrets.token_hex(4)}")
    one.wait(lambda: one.get("/health")["status"] == "healthy", "health", DEADLINE_S)
    yield one
    assert one.end() == 0


@pytest.fixture
def db(postgres):
    name = postgres.create_database()
    with psycopg.connect(postgres.dsn(name), autocommit=True) as connection:
        yield connection
    postgres.drop_database(name)


class Source:
    """A source with a chain: `transforms` and `predicates` are their keys by their names, in the order of the chain."""

    def __init__(self, worker: one_worker.Worker, db: psycopg.Connection[Any], name: str) -> None:
        self.worker, self.db, self.name = worker, db, name
        self.prefix = f"{worker.group}{name}"

    def config(
        self,
        transforms: dict[str, dict[str, str]],
        predicates: dict[str, dict[str, str]] | None = None,
        **more: str,
    ) -> dict[str, str]:
        where = conninfo_to_dict(self.db.info.dsn)
        made = {
            "connector.class": "postgres",
            "database.hostname": str(where["host"]),
            "database.port": str(where["port"]),
            "database.user": str(where["user"]),
            "database.password": self.db.info.password,
            "database.dbname": str(where["dbname"]),
            "slot.name": self.prefix,
            "topic.prefix": self.prefix,
            **{key.replace("_", "."): value for key, value in more.items()},
        }
        for plural, parts in (("transforms", transforms), ("predicates", predicates or {})):
            if parts:
                made[plural] = ",".join(parts)
            made |= {f"{plural}.{name}.{key}": value for name, keys in parts.items() for key, value in keys.items()}
        return made

    def put(self, *args: Any, **more: str) -> None:
        self.worker.put(self.name, self.config(*args, **more))

    def records(self, topic: str, number: int) -> list[Any]:
        """Returns all records of a topic once there are so many."""

        def there() -> list[Any] | None:
            found = self.worker.read(topic)
            return found if len(found) >= number else None

        found: list[Any] = self.worker.wait(there, f"{number} records of {topic}", DEADLINE_S)
        return found

    def metrics(self) -> dict[str, Any]:
        found: dict[str, Any] = self.worker.task(self.name)["metrics"] or {}
        return found

    def wait_loaded(self, tables: int) -> None:
        """Waits for the end of the snapshot: a row that came meanwhile would be written by it and by the stream."""
        self.worker.wait(lambda: self.metrics()["snapshot_tables_loaded"] == tables, "the snapshot", DEADLINE_S)

    def restart_from_stored_position(self) -> None:
        """Kills the task's process, after which the worker starts another."""
        before = self.worker.starts(f"{self.name}-0")
        os.kill(before[-1], signal.SIGKILL)
        self.worker.wait(lambda: len(self.worker.starts(f"{self.name}-0")) > len(before), "another process", DEADLINE_S)

    def delete(self) -> None:
        assert plain_http.delete(f"{self.worker.url}/connectors/{self.name}", timeout=30.0).status_code == 204
        self.worker.wait(
            lambda: self.name not in self.worker.get("/connectors"), "the end of the connector", DEADLINE_S
        )


@pytest.fixture
def source(worker, db):
    made: list[Source] = []

    def make(name: str) -> Source:
        made.append(Source(worker, db, name))
        return made[-1]

    yield make
    for one in made:
        one.delete()


def headers_of(record: Any) -> dict[str, bytes | None]:
    return dict(record.headers() or ())


FLAT_CHAIN = {
    "unwrap": {"type": UNWRAP, "add.headers": "op"},
    "internal": {"type": f"{PACKAGE}Filter", "predicate": "internal"},
    "fields": {"type": f"{PACKAGE}ReplaceField$Value", "exclude": "note", "renames": "quantity:amount", **WHOLE_ROWS},
    "mask": {"type": f"{PACKAGE}MaskField$Value", "fields": "email", "replacement": "***", **WHOLE_ROWS},
    "cast": {"type": f"{PACKAGE}Cast$Value", "spec": "amount:int64,price:string"},
    "when": {
        "type": f"{PACKAGE}TimestampConverter$Value",
        "field": "created_at",
        "target.type": "string",
        "format": "yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
        "unix.precision": "microseconds",
    },
    "stamp": {
        "type": f"{PACKAGE}InsertField$Value",
        "static.field": "origin",
        "static.value": "shop",
        "timestamp.field": "made_at!",
        "topic.field": "made_in",
    },
    "region": {
        "type": f"{PACKAGE}HeaderFrom$Value", "fields": "region", "headers": "region", "operation": "move", **WHOLE_ROWS,
    },
    "version": {"type": f"{PACKAGE}InsertHeader", "header": "version", "value.literal": "7"},
    "key": {"type": f"{PACKAGE}ValueToKey", "fields": "id", **WHOLE_ROWS},
    "id": {"type": f"{PACKAGE}ExtractField$Key", "field": "id"},
    "name": {"type": f"{PACKAGE}SetSchemaMetadata$Value", "schema.name": "shop.Order", "schema.version": "2"},
    "route": {"type": f"{PACKAGE}RegexRouter", "regex": r"(.*)\.public\.(.*)", "replacement": "$1-$2"},
}  # fmt: skip


def flat_order(decoder: RecordDecoder, record: Any) -> tuple[Any, ...]:
    """Returns the key, the value as the row says it and the headers; checks what is of this moment."""
    value, headers = decoder.decode(record.value()), headers_of(record)
    assert headers.pop("version") == b"7"
    if value is not None:
        assert value.pop("made_at") > 1_700_000_000_000
        assert (value.pop("origin"), value.pop("email")) == ("shop", "***")
        assert value.pop("made_in").endswith(".public.orders")
        value = tuple(value.values())
    return decoder.decode(record.key()), value, headers


@pytest.mark.sampled(2, "chains")
def test_a_chain_writes_rows_once_through_a_snapshot_the_stream_and_a_restart(source, worker, db):
    db.execute(
        "create table orders(id int primary key, email text, note text, quantity int not null, price numeric(9, 2),"
        " created_at timestamp, region text); create table secrets(id int primary key)"
    )
    rows = "insert into orders select n, 'e', 'n', n, n, timestamp '2026-11-26 10:00' + n * interval '1 ms', 'r' || n"
    db.execute(f"{rows} from generate_series(1, 3) n; insert into secrets values (1), (2)")
    shop = source("flat")
    predicates = {
        "tombstone": TOMBSTONE,
        "internal": {"type": f"{PACKAGE}predicates.TopicNameMatches", "pattern": r".*\.secrets"},
    }
    shop.put(FLAT_CHAIN, predicates)
    topic = f"{shop.prefix}-orders"
    shop.records(topic, 3)
    shop.wait_loaded(2)
    db.execute(f"{rows} from generate_series(4, 4) n; insert into secrets values (3)")
    db.execute("update orders set quantity = 20 where id = 2; delete from orders where id = 1; delete from secrets")
    shop.records(topic, 6)
    worker.wait(
        lambda: shop.metrics()["filtered_records"] == {"internal": 6}, "the records that are left out", DEADLINE_S
    )
    shop.restart_from_stored_position()
    db.execute(f"{rows} from generate_series(5, 5) n")
    with db.transaction():
        db.execute("insert into secrets values (4)")
        db.execute("update orders set id = 30 where id = 3")
    records = shop.records(topic, 9)
    decoder = RecordDecoder(worker.schemas())
    assert [flat_order(decoder, record) for record in records] == [
        (1, (1, 1, "1.00", "2026-11-26T10:00:00.001Z"), {"__op": b"r", "region": b"r1"}),
        (2, (2, 2, "2.00", "2026-11-26T10:00:00.002Z"), {"__op": b"r", "region": b"r2"}),
        (3, (3, 3, "3.00", "2026-11-26T10:00:00.003Z"), {"__op": b"r", "region": b"r3"}),
        (4, (4, 4, "4.00", "2026-11-26T10:00:00.004Z"), {"__op": b"c", "region": b"r4"}),
        (2, (2, 20, "2.00", "2026-11-26T10:00:00.002Z"), {"__op": b"u", "region": b"r2"}),
        (1, None, {"__op": b"d"}),
        (5, (5, 5, "5.00", "2026-11-26T10:00:00.005Z"), {"__op": b"c", "region": b"r5"}),
        (3, None, {"__op": b"d", "__debezium.newkey": b'{"id":30}'}),
        (
            30,
            (30, 3, "3.00", "2026-11-26T10:00:00.003Z"),
            {"__op": b"c", "region": b"r3", "__debezium.oldkey": b'{"id":3}'},
        ),
    ]
    assert not [name for name in topics_of(worker) if name.startswith(shop.prefix) and "secrets" in name]
    assert schema_of(worker, f"{topic}-key") == "int"
    value = schema_of(worker, f"{topic}-value")
    assert {name: value[name] for name in ("name", "connect.name", "connect.version")} == {
        "name": "shop.Order",
        "connect.name": "shop.Order",
        "connect.version": 2,
    }
    moment = {
        "type": "long",
        "logicalType": "timestamp-millis",
        "connect.name": "org.apache.kafka.connect.data.Timestamp",
        "connect.version": 1,
    }
    text = ["null", "string"]
    assert [(field["name"], field["type"]) for field in value["fields"]] == [
        ("id", "int"),
        ("email", text),
        ("amount", "long"),
        ("price", text),
        ("created_at", text),
        ("made_in", text),
        ("made_at", moment),
        ("origin", text),
    ]


def schema_of(worker: one_worker.Worker, subject: str) -> Any:
    """Returns the schema of a subject that has had no other."""
    log = worker.schemas()
    (version,) = log.versions(subject)
    found = log.by_fingerprint(version.fingerprint)
    assert found
    return found.schema


def topics_of(worker: one_worker.Worker) -> list[str]:
    return list(AdminClient({"bootstrap.servers": worker.bootstrap}).list_topics(timeout=10).topics)


@pytest.mark.sampled(2, "chains")
def test_an_envelope_is_flattened_as_json_with_its_schema_and_without_moved_rows(source, db):
    db.execute("create table points(id int primary key, name text); insert into points values (1, 'a')")
    shop = source("env")
    chain = {
        "moved": {"type": f"{PACKAGE}Filter", "predicate": "moved"},
        "flat": {"type": f"{PACKAGE}Flatten$Value", "delimiter": "_"},
        "whole": {"type": f"{PACKAGE}HoistField$Key", "field": "of", "predicate": "points"},
    }
    predicates = {
        "moved": {"type": f"{PACKAGE}predicates.HasHeaderKey", "name": "__debezium.newkey"},
        "points": {"type": f"{PACKAGE}predicates.TopicNameMatches", "pattern": ".*points"},
    }
    shop.put(chain, predicates, key_converter=JSON, value_converter=JSON)
    topic = f"{shop.prefix}.public.points"
    shop.records(topic, 1)
    shop.wait_loaded(1)
    db.execute("update points set id = 2; delete from points")
    found = [[json.loads(side or "null") for side in (one.key(), one.value())] for one in shop.records(topic, 4)]
    assert [key["payload"] for key, _ in found] == [{"of": {"id": number}} for number in (1, 2, 2, 2)]
    rows = [value and value["payload"] for _, value in found]
    assert [row and (row["op"], row.get("before_id"), row.get("after_id")) for row in rows] == [
        ("r", None, 1),
        ("c", None, 2),
        ("d", 2, None),
        None,
    ]
    for _, value in found[:3]:
        fields = value["schema"]["fields"]
        assert [field["field"] for field in fields] == list(value["payload"])
        assert {field["field"]: (field["type"], field["optional"]) for field in fields}.items() >= {
            "after_id": ("int32", True),
            "after_name": ("string", True),
            "source_table": ("string", False),
            "op": ("string", False),
        }.items()


@pytest.mark.sampled(2, "chains")
def test_a_router_alone_leads_tables_to_one_topic_in_the_form_of_the_source(source, worker, db):
    """The source writes these records itself, as it does without a transform."""
    for table in ("shard1", "shard2"):
        db.execute(f"create table {table}(id int primary key, name text)")
    db.execute("insert into shard1 values (1, 'a'); insert into shard2 values (2, 'b')")
    shop = source("shards")
    shop.put(
        {"route": {"type": f"{PACKAGE}RegexRouter", "regex": r"(.*)\.public\.shard\d", "replacement": "$1.all"}},
        skipped_operations="t",
    )
    topic = f"{shop.prefix}.all"
    shop.records(topic, 2)
    shop.wait_loaded(2)
    shop.restart_from_stored_position()
    db.execute("update shard1 set name = 'A'; insert into shard2 values (3, 'c'); delete from shard1")
    decoder, found = RecordDecoder(worker.schemas()), shop.records(topic, 6)
    values = [decoder.decode(record.value()) for record in found]
    assert [decoder.decode(record.key()) for record in found[2:]] == [{"id": number} for number in (1, 3, 1, 1)]
    told = [value and (value["op"], value["source"]["table"], value["before"], value["after"]) for value in values]
    assert sorted(told[:2]) == [
        ("r", "shard1", None, {"id": 1, "name": "a"}),
        ("r", "shard2", None, {"id": 2, "name": "b"}),
    ]
    assert told[2:5] == [
        ("u", "shard1", None, {"id": 1, "name": "A"}),
        ("c", "shard2", None, {"id": 3, "name": "c"}),
        ("d", "shard1", {"id": 1, "name": None}, None),
    ]
    assert told[5] is None


OUTBOX = {
    "wanted": {
        "type": "io.debezium.transforms.Filter",
        "language": "jsr223.groovy",
        "condition": "value.after?.type != 'Unwanted'",
        "predicate": "table",
    },
    "decode": {"type": "io.debezium.connector.postgresql.transforms.DecodeLogicalDecodingMessageContent"},
    "outbox": {
        "type": "io.debezium.transforms.outbox.EventRouter",
        "table.fields.additional.placement": "type:header:eventType,lane:partition",
        "table.expand.json.payload": "true",
        "table.field.additional.missing": "ignore",
        "predicate": "outbox",
    },
}


@pytest.mark.sampled(2, "chains")
def test_events_of_an_outbox_table_and_of_messages_arrive_once_in_their_topics(source, worker, db):
    """Tables beside the outbox keep their envelopes; the table is emptied behind its events, as applications do."""
    db.execute(
        "create table outbox(id int primary key, aggregatetype text not null, aggregateid text, type text, lane int,"
        " payload jsonb); create table items(id int primary key);"
        " insert into outbox values (1, 'order', 'a', 'Created', 0, '{\"total\": 1}')"
    )
    shop = source("outbox")
    matches = f"{PACKAGE}predicates.TopicNameMatches"
    predicates = {
        "outbox": {"type": matches, "pattern": r".*\.(outbox|message)"},
        "table": {"type": matches, "pattern": r".*\.outbox"},
    }
    shop.put(OUTBOX, predicates)
    orders, returns = "outbox.event.order", "outbox.event.return"
    shop.records(orders, 1)
    shop.wait_loaded(2)
    with db.transaction():
        db.execute("insert into outbox values (2, 'order', 'b', 'Paid', 1, '{\"total\": 2}')")
        db.execute("insert into outbox values (9, 'order', 'z', 'Unwanted', 1, '{}')")
        db.execute("delete from outbox; insert into items values (1)")
        content = '{"id": 3, "aggregatetype": "return", "aggregateid": "c", "payload": {"total": 3, "why": null}}'
        db.execute("select pg_logical_emit_message(true, 'outbox', %s)", [content])
    shop.records(returns, 1)
    shop.restart_from_stored_position()
    db.execute("insert into outbox values (4, 'order', 'a', 'Closed', 0, null); update outbox set type = 'Twice'")
    db.execute("insert into items values (2)")
    decoder = RecordDecoder(worker.schemas())
    told = {
        decoder.decode(record.key()): (
            record.value() and decoder.decode(record.value()),
            {name: (value or b"").decode() for name, value in headers_of(record).items()},
        )
        for record in shop.records(orders, 3)
        if headers_of(record)["id"] != b"1"
    }
    assert told == {
        "b": ({"total": 2}, {"id": "2", "eventType": "Paid"}),
        "a": (None, {"id": "4", "eventType": "Closed"}),
    }
    (message,) = shop.records(returns, 1)
    assert (decoder.decode(message.key()), decoder.decode(message.value())) == ("c", {"total": 3})
    items = [decoder.decode(record.value()) for record in shop.records(f"{shop.prefix}.public.items", 2)]
    assert [value["after"] for value in items] == [{"id": 1}, {"id": 2}]
    assert f"{shop.prefix}.public.outbox" not in topics_of(worker)


@pytest.mark.sampled(2, "chains")
def test_tables_with_their_names_in_the_keys_share_a_topic(source, worker, db):
    db.execute("create table part1(id int primary key, name text); create table part2(id int primary key, name text)")
    db.execute("insert into part1 values (1, 'a'); insert into part2 values (1, 'b')")
    shop = source("parts")
    router = {
        "type": "io.debezium.transforms.ByLogicalTableRouter",
        "topic.regex": r"(.*)\.public\.part\d",
        "topic.replacement": "$1.parts",
        "key.field.regex": r".*\.(part\d)",
        "key.field.replacement": "$1",
        "key.field.name": "part",
    }
    shop.put({"parts": router}, skipped_operations="t")
    shop.records(f"{shop.prefix}.parts", 2)
    shop.wait_loaded(2)
    db.execute("delete from part2")
    decoder, found = RecordDecoder(worker.schemas()), shop.records(f"{shop.prefix}.parts", 4)
    told = [(decoder.decode(one.key()), one.value() and decoder.decode(one.value())["op"]) for one in found]
    assert sorted(told[:2], key=str) == [({"id": 1, "part": "part1"}, "r"), ({"id": 1, "part": "part2"}, "r")]
    assert told[2:] == [({"id": 1, "part": "part2"}, "d"), ({"id": 1, "part": "part2"}, None)]


BAD = [
    ({"x": {"type": "org.example.Unknown"}}, {}, "transforms.x.type"),
    ({"x": {"type": f"{PACKAGE}ExtractField$Key"}}, {}, "transforms.x.field"),
    ({"x": {"type": f"{PACKAGE}Cast$Value", "spec": "id:int128"}}, {}, "transforms.x.spec"),
    ({"x": {"type": f"{PACKAGE}RegexRouter", "regex": "(.*)", "replacement": "$2"}}, {}, "transforms.x.replacement"),
    ({"x": {"type": f"{PACKAGE}Filter", "predicate": "none"}}, {}, "transforms.x.predicate"),
    ({"x": {"type": f"{PACKAGE}Filter", "negate": "true"}}, {}, "transforms.x.type"),
    (
        {"x": {"type": f"{PACKAGE}TimestampConverter$Value", "field": "at", "target.type": "string", "format": "QQ"}},
        {},
        "transforms.x.format",
    ),
    ({}, {"p": {"type": f"{PACKAGE}predicates.TopicNameMatches", "pattern": "("}}, "predicates.p.pattern"),
]


@pytest.mark.sampled(2, "chains")
def test_what_no_chain_can_be_made_of_is_refused_by_its_key(worker, db):
    shop = Source(worker, db, "bad")
    for transforms, predicates, key in BAD:
        refused(worker, shop.config(transforms, predicates), key)
    # A source skips no record for an error.
    refused(worker, shop.config({}, errors_tolerance="all"), "errors.tolerance")
    assert "bad" not in worker.get("/connectors")


def refused(worker: one_worker.Worker, config: dict[str, str], key: str) -> None:
    assert worker.ask("PUT", "/connectors/bad/config", config).status_code == 400
    validate = f"{worker.url}/connector-plugins/postgres/config/validate"
    found = plain_http.put(validate, json={**config, "name": "bad"}, timeout=30.0).json()["configs"]
    assert [each["value"]["name"] for each in found if each["value"]["errors"]] == [key]


CAST = {
    "unwrap": {"type": UNWRAP},
    "number": {"type": f"{PACKAGE}Cast$Value", "spec": "code:int32", "predicate": "codes"},
}
CODES = {"codes": {"type": f"{PACKAGE}predicates.TopicNameMatches", "pattern": ".*codes"}}
SECRET = "not-4711-a-number"


def rows_of(worker: one_worker.Worker, records: list[Any]) -> list[tuple[Any, ...]]:
    decoder = RecordDecoder(worker.schemas())
    return [tuple(decoder.decode(record.value()).values()) for record in records]


@pytest.mark.sampled(2, "chains")
def test_a_record_that_a_transform_cannot_be_applied_to_holds_its_table_back_alone(source, worker, db):
    db.execute("create table codes(id int primary key, code text); create table other(id int primary key)")
    db.execute("insert into codes values (1, '11')")
    shop = source("held")
    shop.put(CAST, CODES)
    codes, other = (f"{shop.prefix}.public.{table}" for table in ("codes", "other"))
    assert rows_of(worker, shop.records(codes, 1)) == [(1, 11)]
    shop.wait_loaded(2)
    with db.transaction():
        db.execute("insert into other values (1)")
        db.execute(f"insert into codes values (2, '22'), (3, '{SECRET}')")
        db.execute("insert into other values (2)")
    (held,) = worker.wait(lambda: shop.metrics().get("quarantine"), "the quarantine", DEADLINE_S)
    assert (held["table"], held["code"]) == ("public.codes", "transform.failed")
    assert held["message"].startswith("transforms.number: ")
    db.execute("insert into codes values (4, '44'); insert into other values (3)")
    assert rows_of(worker, shop.records(other, 3)) == [(1,), (2,), (3,)]
    assert len(worker.read(codes)) == 1
    shop.put({"unwrap": {"type": UNWRAP}})
    assert rows_of(worker, shop.records(codes, 5))[1:] == [(1, "11"), (2, "22"), (3, SECRET), (4, "44")]
    assert rows_of(worker, shop.records(other, 3)) == [(1,), (2,), (3,)]
    assert SECRET not in worker.log.read_text()


@pytest.mark.sampled(2, "chains")
def test_with_the_policy_halt_the_task_fails_at_such_a_record_and_goes_on_there(source, worker, db):
    db.execute("create table codes(id int primary key, code text)")
    shop = source("halted")
    shop.put(CAST, CODES, table_failure_policy="halt", snapshot_mode="no_data")
    worker.wait_state("halted", "RUNNING", timeout_s=DEADLINE_S)
    db.execute("insert into codes values (1, '11')")
    codes = f"{shop.prefix}.public.codes"
    shop.records(codes, 1)
    db.execute(f"insert into codes values (2, '22'); insert into codes values (3, '{SECRET}')")
    db.execute("insert into codes values (4, '44')")
    worker.wait_state("halted", "FAILED", timeout_s=DEADLINE_S)
    (status,) = worker.get("/connectors/halted/status")["tasks"]
    error = worker.task("halted")["error"]
    assert error["code"] == "transform.failed"
    assert (error["where"]["transform"], error["where"]["table"]) == ("number", "public.codes")
    assert error["where"]["commit_lsn"] > 0
    assert status["trace"].startswith("[transform.failed] transforms.number: Value was out of range")
    assert SECRET not in json.dumps(status) + worker.log.read_text()
    mended = {**CAST, "number": {**CAST["number"], "spec": "code:string"}}
    shop.put(mended, CODES, table_failure_policy="halt", snapshot_mode="no_data")
    assert rows_of(worker, shop.records(codes, 4)) == [(1, 11), (2, "22"), (3, SECRET), (4, "44")]


@pytest.mark.sampled(2, "chains")
@pytest.mark.parametrize("converter", ["avro", "json"])
def test_a_chain_leads_no_table_to_a_topic_of_the_cluster(source, worker, db, converter):
    db.execute("create table status(id int primary key); create table small(id int primary key)")
    db.execute("insert into status values (1); insert into small values (1)")
    shop = source(f"own{converter}")
    more = {"key_converter": JSON, "value_converter": JSON} if converter == "json" else {}
    route = {"type": f"{PACKAGE}RegexRouter", "regex": r"(\w+).public.(.+)", "replacement": "$1.$2", **WHOLE_ROWS}
    shop.put({"route": route}, {"tombstone": TOMBSTONE}, topic_prefix=worker.group, **more)
    (held,) = worker.wait(lambda: shop.metrics().get("quarantine"), "the quarantine", DEADLINE_S)
    assert (held["table"], held["code"]) == ("public.status", "source.topic_refused")
    db.execute("insert into small values (2)")
    shop.records(f"{worker.group}.small", 2)
    assert not any(subject.startswith(f"{worker.group}.status") for subject in worker.schemas().subjects())
    own = [json.loads(record.value() or b"{}") for record in worker.read(f"{worker.group}.status")]
    assert own
    assert not [value for value in own if "payload" in value]
