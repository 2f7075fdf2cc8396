"""The whole sink: a broker, a Spark driver in a process of its own, PostgreSQL; killed where it hurts."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest
from cdcworker.schemas.log import encode_record
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

_UNIT = Path(__file__).parents[1] / "unit" / "spark"
CHILD = """
import json, sys, threading, logging
logging.basicConfig(level="INFO")
from cdcworker.connectors.api import SinkSpec, TaskContext
from cdcworker.connectors.spark.connector import SparkSink
from cdcworker.schemas.errors import CdcError
told = json.loads(sys.stdin.readline())
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
lock = threading.Lock()
def say(what):
    with lock:
        print(json.dumps(what), flush=True)
spec = SinkSpec(**{**told, "epoch": tuple(told["epoch"]), "topics": tuple(told["topics"]), "jars": tuple(told["jars"])})
context = TaskContext(
    spec.connector, spec.task, spec.epoch[0], spec.incarnation, spec.state_dir, stopping=stop.is_set, report=say
)
try:
    SparkSink(spec.config).run(spec, context)
except CdcError as exc:
    say({"error": exc.to_dict()})
    sys.exit(1)
"""


def _load(name, path):
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


support = _load("spark_support", _UNIT / "support.py")
NARROW = support.NARROW
pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres]


START_S_MAX = 150
"""A driver starts within five seconds on a free machine."""


def eventually(condition, what, seconds=START_S_MAX):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come within {seconds} s")


class World:
    """One database, one set of topics, and the sink task that is to bring them together."""

    def __init__(self, kafka, dsn, tmp_path, name):
        self.kafka, self.dsn, self.tmp_path, self.name = kafka, dsn, tmp_path, name
        self.schema_topic = f"{name}.schemas"
        self.stream = support.Stream()
        self.model = support.Model()
        self.admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 2})
        self.producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": name, "log_level": 2})
        self.producer.init_transactions(30)
        self.create(self.schema_topic, 1)
        self.sent = 0
        self.logged = 0
        self.attempt = 0
        self.processes = []

    def create(self, topic, partitions=support.PARTITIONS):
        for future in self.admin.create_topics([NewTopic(topic, partitions, 1)]).values():
            future.result(30)

    def topic(self, table):
        return f"{self.name}.public.{table.path[-1]}"

    def send(self):
        """Schemas first, then the changes in one transaction."""
        log = self.stream.schemas.records
        for committed in (log[self.logged :], self.stream.records[self.sent :]):
            self.producer.begin_transaction()
            for record in committed:
                self._produce(record)
            self.producer.commit_transaction(30)
        self.logged, self.sent = len(log), len(self.stream.records)

    def _produce(self, record):
        if isinstance(record, dict):
            topic = record["topic"].replace(support.PREFIX, self.name, 1)
            headers = [(item["key"], item["value"]) for item in record["headers"] or []]
            self.producer.produce(topic, record["value"], record["key"], record["partition"], headers=headers)
        else:
            key, value = encode_record(record)
            self.producer.produce(self.schema_topic, value, key)

    def start(self, topics, failpoints="", **config):
        from cdcworker.worker.devstack import jars
        from cdcworker.worker.devstack.java import find_java

        self.attempt += 1
        parts = psycopg.conninfo.conninfo_to_dict(self.dsn)
        spec = {
            "connector": self.name,
            "task": 0,
            "incarnation": "i",
            "epoch": [1, self.attempt],
            "topics": topics,
            "kafka": {"bootstrap.servers": self.kafka.bootstrap},
            "schema_topic": self.schema_topic,
            "state_dir": str(self.tmp_path),
            "java_home": str(find_java().home),
            "jars": [str(path) for path in jars.ensure("spark")],
            "config": {
                "connector.class": "spark",
                "topics": ",".join(topics),
                "trigger.interval.ms": "100",
                "warehouse.hostname": parts["host"],
                "warehouse.port": str(parts["port"]),
                "warehouse.user": parts["user"],
                "warehouse.password": parts["password"],
                "warehouse.dbname": parts["dbname"],
                **config,
            },
        }
        with (
            (self.tmp_path / f"out{self.attempt}").open("w") as out,
            (self.tmp_path / f"err{self.attempt}").open("w") as err,
        ):
            process = subprocess.Popen(
                [sys.executable, "-c", CHILD],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                env={**os.environ, "CDC_FAILPOINTS": failpoints},
                start_new_session=True,
                text=True,
            )
        self.processes.append(process)
        process.stdin.write(json.dumps(spec) + "\n")
        process.stdin.flush()
        return process

    def said(self):
        lines = (self.tmp_path / f"out{self.attempt}").read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    def rows(self, table=NARROW):
        names = ", ".join(f'"{item.name}"' for item in table.columns)
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            if connection.execute("select to_regclass(%s)", (f"public.{table.path[-1]}",)).fetchone()[0] is None:
                return {}
            found = connection.execute(f"select {names} from public.{table.path[-1]}").fetchall()
        return {(row[0],): list(row) for row in found}

    def stop(self, process):
        """As a worker does: tell it, then wait."""
        process.stdin.close()
        process.wait(30)

    def close(self):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            with contextlib.suppress(OSError):
                process.stdin.close()


def group_is_gone(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    # What is left must be dead already and only wait for its parent.
    states = [
        stat.read_text().rpartition(")")[2].split() for stat in Path("/proc").glob("[0-9]*/stat") if stat.exists()
    ]
    return all(state[0] == "Z" for state in states if int(state[2]) == group)


def await_end_of_group(group):
    eventually(lambda: group_is_gone(group), "the end of the Java process", 30)


@pytest.fixture
def world(kafka, postgres, tmp_path, request):
    database = postgres.create_database()
    made = World(kafka, postgres.dsn(database), tmp_path, f"w{abs(hash(request.node.name)) % 10**8}{os.getpid()}")
    yield made
    made.close()
    postgres.drop_database(database)


def load(world, first, count):
    for number in range(first, first + count):
        row = (number, number % 7, f"a{number}", "b" * 50)
        world.stream.insert(NARROW, row)
        world.model.insert((number,), row)


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
    later = support.table(support.ID, name="later")
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
    assert time.monotonic() - began < 20
    await_end_of_group(process.pid)


def test_a_broken_record_is_set_aside_and_a_refused_table_stands_still_alone(world):
    other = support.table(support.ID, support.column("n", "int", "integer"), name="other")
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
    policies = {"errors.tolerance": "all", "schema.change.policy": "pause-table"}
    world.start([world.topic(NARROW), world.topic(other)], **policies)
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


def test_a_driver_killed_again_and_again_loses_and_doubles_nothing(world):
    world.create(world.topic(NARROW))
    for number, point in enumerate(("sink.batch_start", "sink.staged", "sink.before_commit", "sink.after_commit")):
        load(world, number * 100, 100)
        world.stream.delete(NARROW, (number * 100,))
        del world.model.rows[number * 100,]
        world.stream.update(NARROW, (number * 100 + 1, 5, "again", None), (3,))
        world.model.update((number * 100 + 1,), (number * 100 + 1, 5, "again", None), (3,))
        world.send()
        process = world.start([world.topic(NARROW)], f"{point}=kill@1")
        assert process.wait(START_S_MAX) == -signal.SIGKILL
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
        eventually(lambda: "warehouse is away attempt=3" in said.read_text(), "the third attempt", 60)
        assert process.poll() is None
    finally:
        postgres.start()
    eventually(lambda: world.rows() == world.model.rows, "the rows after the outage")
    world.stop(process)
    assert process.returncode == 0
    assert said.read_text().count("query started") == 2


def test_a_newer_attempt_ends_the_older_driver(world):
    world.create(world.topic(NARROW))
    load(world, 0, 10)
    world.send()
    old = world.start([world.topic(NARROW)])
    eventually(lambda: world.rows() == world.model.rows, "the first rows")
    new = world.start([world.topic(NARROW)])
    eventually(lambda: any("session_start_s" in line for line in world.said()), "the newer driver")
    load(world, 10, 10)
    world.send()
    assert old.wait(30) == 1
    last = json.loads((world.tmp_path / "out1").read_text().splitlines()[-1])
    assert last["error"]["kind"] == "fenced"
    eventually(lambda: world.rows() == world.model.rows, "the rows of the newer driver")
    world.stop(new)


def test_an_undecodable_record_halts_with_its_place(world):
    world.create(world.topic(NARROW), 1)
    world.producer.begin_transaction()
    world.producer.produce(world.topic(NARROW), b"no frame", b"\0\0\0\0\1k", 0)
    world.producer.commit_transaction(30)
    process = world.start([world.topic(NARROW)])
    assert process.wait(START_S_MAX) == 1
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
    process = world.start([world.topic(NARROW)], **{"spark.driver.memory": "512m"})
    eventually(lambda: process.poll() is not None or world.rows() == world.model.rows, "the large rows")
    world.stop(process)
    assert process.returncode == 0
