"""Where rows are and what they are, looked at from outside: a PostgreSQL source, a sink, a real worker, the command line."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import psycopg
import pytest
from cdcworker.connectors.api.sink import LedgerAccess
from cdcworker.connectors.api.table_batch import POSITION
from cdcworker.connectors.warehouses.postgres.ledger import PostgresLedger
from cdcworker.connectors.warehouses.postgres.ledger_admin import PostgresLedgerAdmin
from cdcworker.worker.cli.main import cli
from click.testing import CliRunner

from tests.integration import one_worker

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]
SECRET = "canary-5cd1e07b"
QUICK = {"task.restart.backoff.ms": "10", "task.restart.backoff.max.ms": "50"}


class World:
    """A worker with a source of table `orders` and a sink that writes lines."""

    def __init__(self, worker, db, prefix):
        self.worker, self.db, self.prefix = worker, db, prefix
        self.topic = f"{prefix}.public.orders"

    def command(self, *words):
        return [str(Path(sys.executable).with_name("cdcworker")), *words, "--url", self.worker.url]

    def run(self, *words):
        done = CliRunner().invoke(cli, [*words, "--url", self.worker.url])
        assert done.exit_code == 0, f"{done.output}\n{done.exception!r}"
        return done

    def lines(self, *words):
        return [json.loads(line) for line in self.run(*words, "--json").stdout.splitlines()]

    def changes(self, *words):
        """Without the row that another test adds."""
        lines = self.lines("tail", "shop", "--no-follow", "--from", "beginning", *words)
        return [line for line in lines if line["event"] == "change" and (line["key"] or {}).get("id") != 8]


@pytest.fixture(scope="module")
def world(kafka, postgres, tmp_path_factory):
    folder, tag = tmp_path_factory.mktemp("looking"), secrets.token_hex(3)
    worker = one_worker.Worker(
        folder, kafka.bootstrap, f"l{tag}", **{"file.connector.paths": str(folder), "audit.topic": f"l{tag}.audit"}
    )
    database = postgres.create_database()
    db = psycopg.connect(postgres.dsn(database), autocommit=True)
    try:
        db.execute(
            "create table orders (id int primary key, state text, total numeric(10,2), at timestamptz default now())"
        )
        db.execute("alter table orders replica identity full")
        db.execute("insert into orders values (1, 'old', 1.50)")
        worker.wait_ready()
        info, role = db.info, f"r{tag}"
        db.execute(f"create role {role} superuser login password '{SECRET}'")
        source = {
            "connector.class": "postgres", "database.hostname": info.host, "database.port": str(info.port),
            "database.user": role, "database.password": SECRET, "database.dbname": database,
            "topic.prefix": f"p{tag}", "slot.name": f"s{tag}", **QUICK,
        }  # fmt: skip
        worker.put("shop", source)
        worker.put("out", {
            "connector.class": "file-sink", "file": str(folder / "out.json"), "topics": f"p{tag}.public.orders",
            "value.converter": "io.confluent.connect.avro.AvroConverter", **QUICK,
        })  # fmt: skip
        world = World(worker, db, f"p{tag}")
        worker.wait(lambda: (folder / "out.json").exists() and (folder / "out.json").read_text(), "the first load")
        with db.transaction():
            db.execute("insert into orders values (7, 'new', 6421.73, '2026-01-02 03:04:05.5+00')")
            db.execute("update orders set state = 'paid' where id = 7")
        db.execute("delete from orders where id = 1")
        worker.wait(lambda: (folder / "out.json").read_text().count("\n") >= 4, "the changes")
        yield world
    finally:
        worker.kill()
        db.close()
        postgres.drop_database(database)


@pytest.mark.sampled(2, "looks")
def test_tail_shows_rows_before_and_after(world):
    found = world.changes()
    assert [(line["op"], line["key"]["id"]) for line in found] == [
        ("read", 1),
        ("create", 7),
        ("update", 7),
        ("delete", 1),
    ]
    update = found[2]
    assert (update["changed"], update["before"]["state"], update["after"]["state"]) == (["state"], "new", "paid")
    assert update["after"]["total"] == "6421.73"
    assert update["after"]["at"].startswith("2026-01-02T03:04:05.5")
    assert (update["topic"], update["source"]["table"]) == (world.topic, "orders")


@pytest.mark.sampled(2, "looks")
def test_tail_filters_limits_and_begins_where_it_is_told(world):
    assert [line["op"] for line in world.changes("--op", "delete", "--op", "update")] == ["update", "delete"]
    assert [line["op"] for line in world.changes("--row-key", "7", "--where", "state=new")] == ["create", "update"]
    assert [line["op"] for line in world.changes("--limit", "1")] == ["read"]
    assert world.changes("--table", "other.*") == []
    offset = world.changes("--op", "update")[0]["offset"]
    assert [line["op"] for line in world.changes("--from", str(offset))] == ["update", "delete"]
    assert world.changes("--from", "now") == []
    assert len(world.changes("--from", "1h")) == 4
    sink = world.lines("tail", "out", "--from", "beginning", "--limit", "4")
    assert [line["op"] for line in sink if line["event"] == "change"] == ["read", "create", "update", "delete"]


@pytest.mark.sampled(2, "looks")
def test_transforms_are_tried_on_records_that_a_topic_has(world, tmp_path):
    config = {
        "transforms": "unwrap,deletes,hide",
        "transforms.deletes.type": "org.apache.kafka.connect.transforms.Filter",
        "transforms.deletes.predicate": "tombstone",
        "predicates": "tombstone",
        "predicates.tombstone.type": "org.apache.kafka.connect.transforms.predicates.RecordIsTombstone",
        "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
        "transforms.hide.type": "org.apache.kafka.connect.transforms.MaskField$Value",
        "transforms.hide.fields": "state",
    }
    path = tmp_path / "shop.json"

    def tried(*words):
        path.write_text(json.dumps({"name": "shop", "config": config}))
        properties = world.worker.log.with_suffix(".properties")
        at = ("--config", str(path), "--topic", world.topic, "--worker-config", str(properties))
        return CliRunner().invoke(cli, ["transform", "try", *at, *words])

    answer = tried("--from", "beginning", "--records", "20", "--json")
    assert answer.exit_code == 0, f"{answer.output}\n{answer.exception!r}"
    records = [one for one in json.loads(answer.stdout)["result"]["records"] if one["before"]["key"]["id"] != 8]
    seen = [
        (one["before"]["value"] and one["before"]["value"]["op"], one["after"] and one["after"]["value"])
        for one in records
    ]
    assert [op for op, _ in seen[:4]] == ["r", "c", "u", "d"]
    assert [value and (value["id"], value["state"]) for _, value in seen[:3]] == [(1, ""), (7, ""), (7, "")]
    assert [(one["after"], one["left_out"]) for one in records[3:5]] == [(None, "unwrap"), (None, "deletes")]
    assert "left out by deletes" in tried("--from", "beginning", "--records", "20").output
    newest = json.loads(tried("--records", "1", "--json").stdout)["result"]["records"]
    assert len(newest) == 1
    config["transforms.hide.fields"] = "nothing"
    config["transforms.hide.replacement"] = "x"
    config["transforms.hide.tpye"] = "y"
    refused = tried()
    assert refused.exit_code == 2
    assert "[transform.invalid]" in refused.output
    del config["transforms.hide.tpye"]
    config["transforms.hide.type"] = "org.apache.kafka.connect.transforms.ExtractField$Value"
    config["transforms.hide.field"] = "nothing"
    for key in ("fields", "replacement"):
        del config[f"transforms.hide.{key}"]
    failed = tried("--from", "beginning", "--records", "1")
    assert (failed.exit_code, "[transform.failed]" in failed.output) == (1, True)
    assert "6421.73" not in failed.output


@pytest.mark.sampled(2, "looks")
def test_tail_follows_what_happens_now_in_words(world):
    process = subprocess.Popen(
        world.command("tail", "shop", "--limit", "2"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    watch = threading.Timer(60, process.kill)
    watch.start()
    try:
        assert process.stderr.readline().startswith("topics: ")
        with world.db.transaction():
            world.db.execute("insert into orders values (8, 'seen', 1)")
            world.db.execute("update orders set state = 'twice' where id = 8")
        out, err = process.communicate(timeout=60)
    finally:
        watch.cancel()
        process.kill()
        process.wait()
    heads = [line.split() for line in out.splitlines() if not line.startswith(" ")]
    assert [words[1] for words in heads] == ["CREATE", "UPDATE"]
    assert "~ state  seen → twice" in out
    assert "2 changes shown" in err


def test_what_has_not_been_committed_is_not_shown(world):
    """A transaction that another producer leaves open, and one that it aborts."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": world.worker.bootstrap, "transactional.id": f"x{world.prefix}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(f"{world.prefix}.public.stray", b'{"id": 1}')
    producer.flush(30)
    assert [line for line in world.changes() if line["table"] == "public.stray"] == []
    producer.abort_transaction(30)
    assert [line for line in world.changes() if line["table"] == "public.stray"] == []


def test_rows_are_not_in_the_log_of_the_worker_and_looking_is(world):
    world.changes("--where", "state=paid")
    log = world.worker.log.read_text()
    assert "paid" not in log
    assert "/v1/connectors/{connector}/changes" in log


def stages(world, *words):
    found = json.loads(world.run("explain", *words, "--json").stdout)["result"]
    return found, {stage["stage"]: stage for stage in found["stages"]}


@pytest.mark.sampled(2, "looks")
def test_explain_follows_a_row_from_its_commit_to_the_sink(world):
    update = world.changes("--op", "update", "--row-key", "7")[0]
    world.worker.wait(
        lambda: all(stage["found"] for stage in stages(world, "shop", "orders", "7")[0]["stages"]), "its way"
    )
    found, named = stages(world, "shop", "public.orders", "id=7")
    assert [stage["stage"] for stage in found["stages"]] == [
        "commit",
        "topic",
        "task",
        "transaction",
        "position",
        "sink",
    ]
    assert found["op"] == "update"
    assert named["commit"]["commit_lsn"] == update["source"]["commit_lsn"]
    assert (named["topic"]["topic"], named["topic"]["offset"]) == (world.topic, update["offset"])
    assert (named["task"]["task"], named["task"]["worker"]) == (0, "w1")
    assert named["transaction"]["watermark"]["commit_lsn"] >= update["source"]["commit_lsn"]
    assert named["position"]["commit_lsn"] >= update["source"]["commit_lsn"]
    assert (named["sink"]["sink"], named["sink"]["next_offset"] > update["offset"]) == ("out", True)
    times = [named[name]["at_ms"] for name in ("commit", "topic", "transaction")]
    assert times == sorted(times)
    assert [one["op"] for one in found["others"]] == ["create"]


@pytest.mark.sampled(2, "looks")
def test_explain_takes_the_change_of_an_lsn_and_says_what_it_could_not_find(world):
    create = world.changes("--op", "create", "--row-key", "7")[0]
    found, named = stages(world, "out", "orders", "7", "--lsn", str(create["source"]["lsn"]))
    assert (found["op"], found["newer"], named["topic"]["offset"]) == ("create", 1, create["offset"])
    found, named = stages(world, "shop", "orders", "4711")
    assert (list(named), named["topic"]["found"]) == (["topic"], False)
    assert "from their beginning" in named["topic"]["text"]
    found, named = stages(world, "shop", "orders", "7", "--lsn", "0/1")
    assert named["topic"]["found"] is False


def test_a_support_bundle_holds_no_row_and_no_secret(world, tmp_path):
    path = tmp_path / "bundle.tar.gz"
    world.run("support-bundle", str(path))
    with tarfile.open(path) as bundle:
        files = {item.name.partition("/")[2]: bundle.extractfile(item).read().decode() for item in bundle}
    assert json.loads(files["manifest.json"])["missing"] == []
    for name, text in files.items():
        for canary in (SECRET, "paid", "twice", "6421.73"):
            assert canary not in text, name
    worker = json.loads(files["workers/w1/worker.json"])
    assert worker["topics"][world.topic]["partitions"] == 1
    assert worker["topics"][f"{world.worker.group}.configs"]["settings"]["cleanup.policy"] == "compact"
    assert "cdc_source_table_records_total" in files["workers/w1/metrics.txt"]
    lines = [json.loads(line) for line in files["workers/w1/log.jsonl"].splitlines()]
    assert {line["worker"] for line in lines} == {"w1"}
    bound = [line for line in lines if line.get("connector") == "shop" and "position" in line]
    assert all("commit_lsn" in line["position"] for line in bound)
    assert json.loads(files["connectors/shop/doctor.json"])["findings"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("applied", "row"), [(b"\0" * 7 + b"\x47" + b"\0" * 8, "this"), (b"\xff" * 16, "newer"), (None, "absent")]
)
def test_a_warehouse_says_what_became_of_one_change(postgres, applied, row):
    database = postgres.create_database()
    change = {
        "topic": "p.public.t", "partition": 0, "offset": 5, "table": "public.t", "key": {"id": 7},
        "source": {"commit_lsn": 0x47, "tx_index": 0, "tx_sub": 0},
    }  # fmt: skip
    try:
        dsn = postgres.dsn(database)
        admin = PostgresLedgerAdmin(dsn, LedgerAccess("wh"), column=POSITION)
        assert "next_offset" not in admin.trace(change)
        with psycopg.connect(dsn) as db:
            ledger = PostgresLedger("wh", 0)
            ledger.create(db)
            db.execute(
                "insert into _cdcworker.ledger (sink, topic, partition, next_offset, applied, batch, task_epoch, attempt, at)"
                " values ('wh', 'p.public.t', 0, 6, %s, 3, 1, 1, now())",
                (b"\0" * 7 + b"\x47" + b"\0" * 8,),
            )
            db.execute("create table t (id int primary key, _cdc_position bytea)")
            if applied is not None:
                db.execute("insert into t values (7, %s)", (applied,))
        told = admin.trace(change)
        assert (told["next_offset"], told["batch"], told["row"], told.get("dead")) == (6, 3, row, None)
        assert told["applied"] == told["position"]
        with psycopg.connect(dsn) as db:
            db.execute(
                'insert into _cdcworker.dead_letter (sink, topic, partition, "offset", code, cause)'
                " values ('wh', 'p.public.t', 0, 5, 'schema.undecodable', 'x')"
            )
        assert admin.trace(change)["dead"] == "schema.undecodable"
    finally:
        postgres.drop_database(database)
