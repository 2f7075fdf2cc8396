"""Very large rows: one that the server cannot write as text does not wedge the stream, since it is read in binary, and text
goes on behind it; one of a hundred megabytes arrives where Kafka takes it, and elsewhere its table alone is held back."""

from __future__ import annotations

import base64
import json
import resource
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from cdcworker.connectors.postgres.source import binary_fallback as turning
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.devstack.kafka import EmbeddedKafka
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tests.conftest import serving
from tests.integration import one_worker

from ..postgres_reader import Reader
from .test_topics import PLAIN, config_of

pytestmark = pytest.mark.postgres

LARGE_BYTES = 100_000_000
LARGE_TEXT = "0123456789" * (LARGE_BYTES // 10)
TAKEN_BYTES = 300_000_000
"""What the brokers' limits are raised to: as JSON the bytes are a third longer."""
ARRIVES_S_MAX, TIMES_MAX = 120.0, 16
"""Two such rows may be held at once, one of them as hexadecimal digits, and as records."""
HUNDRED = (
    f"insert into texts select 2, repeat('0123456789', {LARGE_BYTES // 10});"
    f"insert into blobs select 2, convert_to(repeat('0123456789', {LARGE_BYTES // 10}), 'UTF8')"
)
ROW_BYTES = 600_000_000
LARGE = f"insert into bad select %s, convert_to(repeat('x', {ROW_BYTES}), 'SQL_ASCII')"
TABLES = "create table bad(id int primary key, data bytea); create table good(id int primary key, v text)"


def meets_the_row(one: Reader) -> None:
    """As the runner does: what was not committed is dropped, and the task opened again at its position."""
    with pytest.raises(CdcError) as caught:
        one.until(lambda: False, 120)
    assert (caught.value.code, caught.value.retriable) == ("postgres.turns_binary", True)
    one.kill()
    one.start()


def told(one: Reader, table: str) -> list[tuple]:
    return [(c.op, c.after) for c in one.log if c.table.path[1] == table]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("storage", ["main", "external"], ids=["small in the log", "sent ahead of its end"])
def test_a_row_that_does_not_fit_text_is_handed_on_with_all_before_and_behind_it(db, reader, storage):
    db.execute(TABLES)
    db.execute(f"alter table bad alter data set storage {storage}")
    one = reader().start()
    one.until(one.loaded)
    db.execute("insert into good values (1, 'before')")
    with db.transaction():
        db.execute("insert into good values (2, 'first of it')")
        db.execute(LARGE, (1,))
        db.execute("update good set v = 'last of it' where id = 2")
    db.execute("insert into good values (3, 'behind')")
    meets_the_row(one)
    one.until(lambda: any(c.after == (3, "behind") for c in one.log), 120)
    large = [c for c in one.log if c.table.path[1] == "bad"]
    assert [(c.op, c.after[0], len(c.after[1]), c.after[1].count(b"x")) for c in large] == [
        ("c", 1, ROW_BYTES, ROW_BYTES)
    ]
    one.log = [c for c in one.log if c not in large]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"peak {peak / 1e6:.0f} MB for a row of {ROW_BYTES / 1e6:.0f} MB")
    assert peak <= 6 * ROW_BYTES
    one.until(lambda: turning.NOTE not in one.notes)
    db.execute("insert into good values (4, 'in text')")
    one.catch_up(db)
    values = [("c", (1, "before")), ("c", (2, "first of it")), ("u", (2, "last of it")), ("c", (3, "behind"))]
    assert told(one, "good") == [*values, ("c", (4, "in text"))]
    assert one.task._session.decoder.transcode is None


@pytest.fixture(scope="module")
def roomy(devstack_dir) -> Iterator[EmbeddedKafka]:
    """A broker that takes large requests."""
    names = ("message.max.bytes", "socket.request.max.bytes", "replica.fetch.max.bytes")
    with serving(EmbeddedKafka(devstack_dir / "roomy", dict.fromkeys(names, str(TAKEN_BYTES)), heap="3g")) as server:
        yield server


QUEUE = {"producer.queue.buffering.max.kbytes": str(TAKEN_BYTES // 1024)}
LARGEST = {"producer.message.max.bytes": str(TAKEN_BYTES)}
SMALLEST = {"producer.message.max.bytes": str(LARGE_BYTES // 2)}
ROOMY_TOPICS = {"topic.creation.default.max.message.bytes": str(TAKEN_BYTES)}


@pytest.fixture
def worker(request, tmp_path) -> Iterator[one_worker.Worker]:
    """Of the broker whose fixture is the parameter's first, with the worker's properties that are its second."""
    name, sizes = request.param
    broker, group = request.getfixturevalue(name), f"lv{uuid.uuid4().hex[:8]}"
    one = one_worker.Worker(tmp_path, broker.bootstrap, group, session_timeout_ms="20000", **sizes)
    one.wait_ready()
    yield one
    one.kill()


def starts_with_large_rows(
    worker: one_worker.Worker, db: psycopg.Connection, dsn: str, when: str, **more: str
) -> float:
    """Two tables with a row of a hundred megabytes each between little ones, and a third with none; when that began."""
    db.execute("create table texts(id int primary key, body text); create table blobs(id int primary key, body bytea)")
    db.execute("create table small(id int primary key); insert into small values (1)")
    db.execute("insert into texts values (1, 'x'); insert into blobs values (1, 'x')")
    if when == "in the snapshot":
        db.execute(HUNDRED)
    began = time.monotonic()
    worker.put("shop", config_of(dsn, worker.group, **PLAIN, **{"topic.creation.default.partitions": "1"}, **more))
    little = 1 if when == "in the snapshot" else 3
    worker.wait(lambda: worker.task("shop")["metrics"]["records"] >= little, "the first rows")
    if when == "in the stream":
        worker.wait(lambda: worker.task("shop")["metrics"]["snapshot_tables_left"] == 0, "all rows")
        began = time.monotonic()
        db.execute(HUNDRED)
    db.execute("insert into small values (2)")
    return began


def afters(worker: one_worker.Worker, table: str) -> dict[int, object]:
    """Of every committed record of this table, by id; a record that is there twice is an error."""
    size = {"fetch.message.max.bytes": str(TAKEN_BYTES), "receive.message.max.bytes": str(TAKEN_BYTES + 1000)}
    settings = {"bootstrap.servers": worker.bootstrap, "group.id": "t", "fetch.max.bytes": str(TAKEN_BYTES), **size}
    place = TopicPartition(f"{worker.group}.public.{table}", 0, OFFSET_BEGINNING)
    found: dict[int, object] = {}
    with closing(Consumer({**settings, "isolation.level": "read_committed", "enable.partition.eof": True})) as consumer:
        consumer.assign([place])
        while (message := consumer.poll(30.0)) is not None and not message.error():
            after = json.loads(message.value())["after"]
            assert after["id"] not in found
            found[after["id"]] = after["body"]
    return found


def peak(worker: one_worker.Worker) -> int:
    """Bytes, of its only task."""
    (pid,) = worker.starts("shop-0")
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024


def shown(worker: one_worker.Worker, when: str, took_s: float, small_s: float) -> str:
    times = peak(worker) / LARGE_BYTES
    return f"\n{when}: {took_s:.1f} s, the other table {small_s:.1f} s, at most {times:.1f} times a row"


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.timeout(600)
@pytest.mark.parametrize("when", ["in the stream", "in the snapshot"])
@pytest.mark.parametrize("worker", [("roomy", QUEUE | LARGEST)], indirect=True, ids=["roomy"])
def test_rows_of_a_hundred_megabytes_arrive_where_kafka_takes_them(worker, postgres, database, db, when):
    began = starts_with_large_rows(worker, db, postgres.dsn(database), when, **ROOMY_TOPICS)
    small_s = seconds_until_small(worker, began)
    worker.wait(lambda: worker.task("shop")["metrics"]["records"] >= 6, "all records", 240)
    took = time.monotonic() - began
    print(shown(worker, when, took, small_s))
    assert afters(worker, "texts") == {1: "x", 2: LARGE_TEXT}
    blobs = {key: base64.b64decode(value) for key, value in afters(worker, "blobs").items()}
    assert blobs == {1: b"x", 2: LARGE_TEXT.encode()}
    assert took <= ARRIVES_S_MAX
    assert peak(worker) <= TIMES_MAX * LARGE_BYTES


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.timeout(600)
@pytest.mark.parametrize("when", ["in the stream", "in the snapshot"])
@pytest.mark.parametrize(
    ("worker", "topics"),
    [(("kafka", {}), {}), (("roomy", LARGEST), ROOMY_TOPICS), (("roomy", QUEUE | SMALLEST), ROOMY_TOPICS)],
    indirect=["worker"],
    ids=["too large for the topics", "too large for the queue", "too large for the client"],
)
def test_rows_of_a_hundred_megabytes_hold_their_tables_back_and_no_other(worker, postgres, database, db, when, topics):
    began = starts_with_large_rows(worker, db, postgres.dsn(database), when, **topics)
    small_s = seconds_until_small(worker, began)
    worker.wait(lambda: len(worker.task("shop")["metrics"]["quarantine"]) == 2, "the quarantine", 240)
    took = time.monotonic() - began
    print(shown(worker, when, took, small_s))
    held = {one["table"]: one["code"] for one in worker.task("shop")["metrics"]["quarantine"]}
    assert held == dict.fromkeys(("public.texts", "public.blobs"), "source.record_too_large")
    assert worker.task("shop")["state"] == "RUNNING"
    db.execute("insert into small values (3)")
    worker.wait(lambda: len(worker.read(f"{worker.group}.public.small")) == 3, "the other table goes on")
    assert took <= ARRIVES_S_MAX
    assert peak(worker) <= TIMES_MAX * LARGE_BYTES


def seconds_until_small(worker: one_worker.Worker, began: float) -> float:
    worker.wait(lambda: len(worker.read(f"{worker.group}.public.small")) == 2, "the other table", 240)
    return time.monotonic() - began
