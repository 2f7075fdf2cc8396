"""The whole sink: a broker, a Spark driver in a process of its own, PostgreSQL; killed where it hurts."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections import Counter

import psycopg
import pytest

from tests import change_streams
from tests.change_streams import NARROW
from tests.integration.connectors.sink_engine.kafka.test_written_tables import parquet_rows
from tests.integration.connectors.warehouses.lake.test_writer import LAKE_S_MAX, lake_rows

from .. import spark_world
from ..spark_world import await_end_of_group, eventually, load

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres]
LEAKY = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
"""pyspark leaves the sockets over which Arrow tables come to the garbage collector."""


@pytest.mark.sampled(3, "drivers")
def test_changes_reach_the_warehouse_and_a_stop_leaves_no_process(world):
    world.create(world.topic(NARROW))
    load(world, 0, 500)
    world.send()
    process = world.start([world.topic(NARROW), f"{world.name}.public.later"])
    eventually(lambda: world.rows() == world.model.rows, "the first load")
    world.stream.update(NARROW, (1, 99, "changed", None), (3,))
    world.model.update((1,), (1, 99, "changed", None), (3,))
    world.stream.delete(NARROW, (2,))
    del world.model.rows[2,]
    world.stream.move(NARROW, (3,), (3000, 1, "moved", None), (3,))
    world.model.move((3,), (3000,), (3000, 1, "moved", None), (3,))
    world.send()
    eventually(lambda: world.rows() == world.model.rows, "the changes")
    later = change_streams.table(change_streams.ID, name="later")
    world.create(world.topic(later))
    world.stream.insert(later, (7,))
    world.send()
    eventually(lambda: world.rows(later) == {(7,): [7]}, "the topic that was created later")
    metrics = eventually(lambda: [line for line in world.said() if line["tables"].get("public.later")], "metrics")[-1]
    assert metrics["tables"]["public.orders"] == 504
    assert metrics["offsets"][f"{world.topic(NARROW)}-0"] > 0
    began = time.monotonic()
    world.stop(process)
    assert process.returncode == 0
    assert time.monotonic() - began < 60
    await_end_of_group(process.pid)


@pytest.mark.sampled(3, "drivers")
def test_a_broken_record_is_set_aside_and_a_refused_table_stands_still_alone(world):
    other = change_streams.table(change_streams.ID, change_streams.column("n", "int", "integer"), name="other")
    for table in (NARROW, other):
        world.create(world.topic(table), 1)
    with psycopg.connect(world.dsn, autocommit=True) as connection:
        connection.execute("create table public.orders (id bigint primary key, n date, a text, big text)")
    world.stream.partitions = 1
    world.stream.insert(NARROW, (1, 1, "a", "b"))
    for number in range(3):
        world.stream.insert(other, (number, number))
    world.stream.records[2]["value"] = b"broken"
    world.send()
    world.start([world.topic(NARROW), world.topic(other)], **{"errors.tolerance": "all"})
    eventually(lambda: world.rows(other) == {(0,): [0, 0], (2,): [2, 2]}, "the rows of the other table")
    world.stream.insert(other, (7, 7))
    world.send()
    eventually(lambda: (7,) in world.rows(other), "a row after the pause")
    said = [line for line in world.said() if line.get("paused")][-1]
    assert list(said["paused"]) == [world.topic(NARROW)]
    with psycopg.connect(world.dsn, autocommit=True) as connection:
        letters = connection.execute("select topic, value from _cdcworker.dead_letter").fetchall()
        ledger = connection.execute("select distinct topic from _cdcworker.ledger where next_offset > 0").fetchall()
    assert letters == [(world.topic(other), b"broken")]
    assert ledger == [(world.topic(other),)]


def test_a_refused_table_is_caught_up_in_the_same_process_once_it_fits(world):
    other = change_streams.table(change_streams.ID, name="other")
    for table in (NARROW, other):
        world.create(world.topic(table))
    with psycopg.connect(world.dsn, autocommit=True) as connection:
        connection.execute("create table public.orders (id bigint primary key, n date, a text, big text)")
        load(world, 0, 50)
        world.stream.insert(other, (1,))
        world.send()
        world.environment["CDC_TEST_RETRY_S"] = "3"
        process = world.start([world.topic(NARROW), world.topic(other)])
        eventually(lambda: [line for line in world.said() if line["paused"]], "the pause")
        # More of both while the one stands still: it has to come back to where it stopped.
        load(world, 50, 50)
        world.stream.delete(NARROW, (7,))
        del world.model.rows[7,]
        world.stream.insert(other, (2,))
        world.send()
        eventually(lambda: world.rows(other) == {(1,): [1], (2,): [2]}, "the rows of the other table")
        assert world.rows() == {}
        connection.execute("alter table public.orders alter n type int using null")
    eventually(lambda: world.rows() == world.model.rows, "the rows of the table that was paused")
    load(world, 100, 10)
    world.send()
    eventually(lambda: world.rows() == world.model.rows, "rows after the pause")
    eventually(lambda: world.said()[-1]["paused"] == {}, "the end of the pause", 30)
    assert world.attempt == 1
    world.stop(process)
    assert process.returncode == 0


@pytest.mark.long
@pytest.mark.parametrize(
    "points",
    [
        pytest.param(("sink.staged", "sink.after_commit"), id="staged and committed"),
        pytest.param(("sink.batch_start", "sink.before_commit", "sink.after_commit"), id="before"),
    ],
)
def test_a_driver_killed_again_and_again_loses_and_doubles_nothing(world, points):
    world.create(world.topic(NARROW))
    for number, point in enumerate(points):
        load(world, number * 100, 100)
        world.stream.delete(NARROW, (number * 100,))
        del world.model.rows[number * 100,]
        world.stream.update(NARROW, (number * 100 + 1, 5, "again", None), (3,))
        world.model.update((number * 100 + 1,), (number * 100 + 1, 5, "again", None), (3,))
        world.send()
        process = world.start([world.topic(NARROW)], f"{point}=kill@1")
        assert process.wait(spark_world.START_S_MAX) == -signal.SIGKILL
        await_end_of_group(process.pid)
    assert world.rows() == world.model.rows  # the last one died behind its commit
    load(world, 400, 50)
    world.send()
    process = world.start([world.topic(NARROW)])
    eventually(lambda: world.rows() == world.model.rows, "the rows after the kills")
    changes = eventually(lambda: [line["changes"] for line in world.said() if line["changes"]], "metrics")[-1]
    assert changes == 50
    world.stop(process)
    assert process.returncode == 0


def test_a_warehouse_that_goes_down_is_waited_for_in_place(world, postgres):
    world.create(world.topic(NARROW))
    load(world, 0, 300)
    world.send()
    process = world.start([world.topic(NARROW)])
    eventually(lambda: world.rows() == world.model.rows, "the first load")
    said = world.tmp_path / f"err{world.attempt}"
    postgres.kill()
    try:
        load(world, 300, 300)
        world.send()
        eventually(lambda: "warehouse is unavailable attempt=3" in said.read_text(), "the third attempt", 60)
        assert process.poll() is None
    finally:
        postgres.start()
    eventually(lambda: world.rows() == world.model.rows, "the rows after the outage")
    world.stop(process)
    assert process.returncode == 0
    assert said.read_text().count("query started") == 2


@pytest.mark.sampled(3, "drivers")
@pytest.mark.parametrize(
    "kind",
    [
        "postgres",
        pytest.param("parquet", marks=pytest.mark.long),
        pytest.param("iceberg", marks=(pytest.mark.iceberg, pytest.mark.long, LEAKY)),
        pytest.param("delta", marks=(pytest.mark.iceberg, pytest.mark.delta, pytest.mark.long, LEAKY)),
    ],
)
def test_a_newer_attempt_ends_the_older_driver(world, kind, request):
    lake = {} if kind == "postgres" else {"warehouse": kind, "warehouse.path": str(world.tmp_path / "lake")}

    def rows():
        if kind == "postgres":
            return world.rows()
        return parquet_rows(world) if kind == "parquet" else lake_rows(request.getfixturevalue("spark"), world, kind)

    world.create(world.topic(NARROW))
    load(world, 0, 10)
    world.send()
    old = world.start([world.topic(NARROW)], **lake)
    eventually(lambda: rows() == world.model.rows, "the first rows", LAKE_S_MAX)
    new = world.start([world.topic(NARROW)], **lake)
    eventually(lambda: any("session_start_s" in line for line in world.said()), "the newer driver", LAKE_S_MAX)
    assert old.poll() is None
    load(world, 10, 10)
    world.send()
    assert old.wait(LAKE_S_MAX) == 1
    last = json.loads((world.tmp_path / "out1").read_text().splitlines()[-1])
    assert last["error"]["kind"] == "fenced"
    eventually(lambda: rows() == world.model.rows, "the rows of the newer driver", LAKE_S_MAX)
    assert new.poll() is None
    world.stop(new)
    assert new.returncode == 0


class Checkpoints:
    """What drivers that are gone have left of their checkpoints, wherever that is, made into something else."""

    def __init__(self, world, topics):
        self.world, self.topics = world, topics
        self.kept = world.tmp_path / "kept"

    def found(self):
        return [path.parent for path in self.world.tmp_path.rglob("offsets") if self.kept not in path.parents]

    def keep(self):
        """As it is now, of the driver that runs."""
        (found,) = eventually(lambda: [path for path in self.found() if numbers(path / "commits")], "a checkpoint")
        shutil.copytree(found, self.kept)

    def become_older(self, path):
        shutil.rmtree(path)
        shutil.copytree(self.kept, path)

    def become_newer(self, path):
        """It says of everything that is there that it was read, and applied."""
        ends = {}
        for (topic, partition), end in self.world.ends(self.topics).items():
            ends.setdefault(topic, {})[str(partition)] = end
        last = numbers(path / "offsets")[-1]
        lines = (path / "offsets" / str(last)).read_text().splitlines()
        (path / "offsets" / str(last)).write_text("\n".join([*lines[:-1], json.dumps(ends)]))
        committed = (path / "commits" / str(numbers(path / "commits")[-1])).read_bytes()
        (path / "commits" / str(last)).write_bytes(committed)

    def become_cut_off(self, path):
        for name in ("offsets", "commits"):
            file = path / name / str(numbers(path / name)[-1])
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def numbers(folder):
    """Of the batches that a checkpoint's folder holds."""
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit())


@pytest.mark.long
@pytest.mark.parametrize("becomes", ["newer", "older", "cut_off"])
def test_whatever_a_checkpoint_says_the_ledger_decides(world, becomes):
    history = change_streams.table(*NARROW.columns, key=(), name="history")
    topics = [world.topic(table) for table in (NARROW, history)]
    for topic in topics:
        world.create(topic)
    checkpoints = Checkpoints(world, topics)

    def change():
        first = len(world.model.rows)
        load(world, first, 50)
        for id in range(first, first + 50):
            world.stream.insert(history, (id, 1, "a", "b"))
        world.send()

    def equal():
        return world.rows() == world.model.rows and world.count(history) == len(world.model.rows)

    change()
    process = world.start(topics)
    eventually(equal, "the first rows")
    checkpoints.keep()
    change()
    eventually(equal, "more rows")
    eventually(lambda: all(numbers(path / "commits")[-1:] > [0] for path in checkpoints.found()), "its checkpoint")
    process.kill()
    process.wait()
    await_end_of_group(process.pid)
    change()
    assert checkpoints.found()
    for path in checkpoints.found():
        getattr(checkpoints, f"become_{becomes}")(path)
    process = world.start(topics)
    eventually(equal, "the rows behind the ledger")
    world.stop(process)
    assert process.returncode == 0


@pytest.mark.long
@pytest.mark.parametrize("kind", ["postgres", "parquet"])
def test_a_batch_is_one_job_of_spark_however_many_tables_it_has(world, kind):
    tables = [change_streams.table(change_streams.ID, name=f"t{number}") for number in range(20)]
    world.stream.partitions = 1
    for table in tables:
        world.create(world.topic(table), 1)
        world.stream.insert(table, (1,))
    world.send()
    log = events_of(world)
    lake = {} if kind == "postgres" else {"warehouse": kind, "warehouse.path": str(world.tmp_path / "lake")}
    process = world.start([world.topic(table) for table in tables], **lake)

    def applied(rows):
        return [line for line in world.said() if line.get("rows") == rows]

    first = eventually(lambda: applied(20), "a row of each table")[0]
    assert len(first["tables"]) == 20
    assert jobs(log) == {str(number): 1 for number in range(first["batches"])}
    world.stream.insert(tables[0], (2,))
    world.send()
    second = eventually(lambda: applied(21), "one row of one table")[0]
    assert jobs(log) == {str(number): 1 for number in range(second["batches"])}
    world.stop(process)


def events_of(world):
    """The folder where drivers that are started from now on let Spark write what it does."""
    folder, config = world.tmp_path / "events", world.tmp_path / "conf"
    folder.mkdir()
    config.mkdir()
    wanted = {"enabled": "true", "dir": folder.as_uri(), "rolling.enabled": "false", "compress": "false"}
    (config / "spark-defaults.conf").write_text("".join(f"spark.eventLog.{name} {wanted[name]}\n" for name in wanted))
    world.environment["SPARK_CONF_DIR"] = str(config)
    return folder


def jobs(folder):
    """Of each batch of the query the number of Spark's jobs; those of none are under None."""
    lines = [line for path in folder.iterdir() for line in path.read_text().splitlines()]
    started = [json.loads(line) for line in lines if '"SparkListenerJobStart"' in line]
    return Counter(event["Properties"].get("streaming.sql.batchId") for event in started)


@pytest.mark.long
def test_an_undecodable_record_halts_with_its_place(world):
    world.create(world.topic(NARROW), 1)
    world.producer.begin_transaction()
    world.producer.produce(world.topic(NARROW), b"no frame", b"\0\0\0\0\1k", 0)
    world.producer.commit_transaction(30)
    process = world.start([world.topic(NARROW)])
    assert process.wait(spark_world.START_S_MAX) == 1
    error = world.said()[-1]["error"]
    assert error["code"] == "spark.undecodable"
    assert error["where"] == {"topic": world.topic(NARROW), "partition": 0, "offset": 0}


@pytest.mark.long
def test_rows_too_large_for_the_heap_make_smaller_batches(world):
    world.create(world.topic(NARROW))
    for number in range(500):
        row = (number, 1, "a", f"{number}" * 300_000)
        world.stream.insert(NARROW, row)
        world.model.insert((number,), row)
        if number % 50 == 0:
            world.send()
    world.send()
    process = world.start([world.topic(NARROW)], **{"spark.driver.memory": "520m"})
    eventually(lambda: process.poll() is not None or world.rows() == world.model.rows, "the large rows")
    world.stop(process)
    assert process.returncode == 0
