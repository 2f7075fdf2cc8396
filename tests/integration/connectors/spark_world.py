"""A broker's topics, a database and the Spark driver between them, as a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
from cdcworker.schemas.log import encode_record
from cdcworker.worker.linux.procfs import read_stat
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests import change_streams
from tests.change_streams import NARROW
from tests.integration.connectors.spark_archive import cache_of
from tests.waiting import pause

CHILD = """
import json, os, pathlib, signal, sys, threading, time, logging
logging.basicConfig(level="INFO")
from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.api.sink import SinkSpec
from cdcworker.connectors.sink_engine import paused_tables
from cdcworker.connectors.spark.connector import SparkSink
from cdcworker.schemas import failpoints
from cdcworker.schemas.errors import CdcError
told = json.loads(sys.stdin.readline())
paused_tables.RETRY_S_MIN = float(os.environ.get("CDC_TEST_RETRY_S", paused_tables.RETRY_S_MIN))
state = pathlib.Path(told["state_dir"])
asked = state / "stop-at"
passing = threading.Lock()
def newest(kind):
    return max((int(path.name) for path in state.glob(f"sink/**/checkpoints/*/{kind}/[0-9]*")), default=-1)
def at(point):
    # Tables of a lake pass it in threads of their own.
    with passing:
        if not asked.exists():
            return
        wanted, left, written = asked.read_text().split("@")
        if point != wanted:
            return
        if int(left) > 1:
            asked.write_text(f"{wanted}@{int(left) - 1}@{written}")
            return
        asked.unlink()
    begun = newest("offsets")
    # Nobody has to pass here before: Spark's own thread writes it.
    while written and newest("commits") < begun:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGSTOP)
failpoints.listen(at)
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
lock = threading.Lock()
def say(what):
    with lock:
        print(json.dumps(what), flush=True)
spec = SinkSpec(**{**told, "epoch": tuple(told["epoch"]), "topics": tuple(told["topics"]), "jars": tuple(told["jars"])})
context = TaskContext(
    spec.connector, spec.task, spec.epoch[0], spec.incarnation, spec.state_dir, stopping=stop.is_set, report=say,
    file_roots=(spec.state_dir,),
)
try:
    SparkSink(spec.config).run(spec, context)
except CdcError as exc:
    say({"error": exc.to_dict()})
    sys.exit(1)
"""


START_S_MAX = 150
"""A driver starts within five seconds on a free machine."""


def eventually(condition, what, seconds=START_S_MAX):
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        found = condition()
        if found:
            return found
        pause(began)
    raise AssertionError(f"{what} did not come within {seconds} s")


class World:
    """One database, one set of topics, and the sink task that is to bring them together."""

    def __init__(self, kafka, dsn, tmp_path, name):
        self.kafka, self.dsn, self.tmp_path, self.name = kafka, dsn, tmp_path, name
        self.schema_topic = f"{name}.schemas"
        self.stream = change_streams.Stream(prefix=name)
        self.model = change_streams.Model()
        self.admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 2})
        self.producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": name, "log_level": 2})
        self.producer.init_transactions(30)
        self.create(self.schema_topic, 1, **{"cleanup.policy": "compact"})
        self.sent = 0
        self.logged = 0
        self.attempt = 0
        self.processes = []
        self.environment = {}
        """Of drivers that are started from now on, besides what they inherit."""

    def create(self, topic, partitions=change_streams.PARTITIONS, **config):
        for future in self.admin.create_topics([NewTopic(topic, partitions, 1, config=config)]).values():
            future.result(30)

    def topic(self, table):
        return f"{self.name}.public.{table.path[-1]}"

    def send(self, watermark=None):
        """Schemas first, then the changes in one transaction, with how far the source is now."""
        log = self.stream.schemas.records
        for number, committed in enumerate((log[self.logged :], self.stream.records[self.sent :])):
            self.producer.begin_transaction()
            for record in committed:
                self._produce(record)
            if watermark is not None and number:
                self._say(watermark)
            self.producer.commit_transaction(30)
        self.logged, self.sent = len(log), len(self.stream.records)

    def _produce(self, record):
        if isinstance(record, dict):
            topic = record["topic"]
            headers = [(item["key"], item["value"]) for item in record["headers"] or []]
            self.producer.produce(topic, record["value"], record["key"], record["partition"], headers=headers)
        else:
            key, value = encode_record(record)
            self.producer.produce(self.schema_topic, value, key)

    def _say(self, position):
        key, value = {"connector": "source", "task": 0}, {"v": 1, "commit_lsn": position, "ts_ms": position}
        self.producer.produce(f"{self.name}.watermark", json.dumps(value).encode(), json.dumps(key).encode(), 0)

    def config(self, topics):
        """Of a sink into the database."""
        parts = psycopg.conninfo.conninfo_to_dict(self.dsn)
        names = {"hostname": "host", "port": "port", "user": "user", "password": "password", "dbname": "dbname"}
        return {
            "connector.class": "spark",
            "topics": ",".join(topics),
            "trigger.interval.ms": "500",
            **{f"warehouse.{ours}": str(parts[theirs]) for ours, theirs in names.items()},
        }

    def start(self, topics, failpoints="", **config):
        from cdcworker.connectors.spark.spark_host import jars_of
        from cdcworker.worker.java import jars
        from cdcworker.worker.java.runtime import find_java

        self.attempt += 1
        java, names = find_java(), jars_of(config).split("+")
        libraries = [str(path) for name in names for path in jars.ensure(name)]
        spec = {
            "connector": self.name,
            "task": 0,
            "incarnation": "i",
            "epoch": [1, self.attempt],
            "topics": topics,
            "kafka": {"bootstrap.servers": self.kafka.bootstrap},
            "schema_topic": self.schema_topic,
            "state_dir": str(self.tmp_path),
            "java_home": str(java.home),
            "cache_dir": cache_of(libraries),
            "jars": libraries,
            "config": {**self.config(topics), **config},
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
                env={**os.environ, **self.environment, "CDC_FAILPOINTS": failpoints},
                start_new_session=True,
                text=True,
            )
        self.processes.append(process)
        process.stdin.write(json.dumps(spec) + "\n")
        process.stdin.flush()
        return process

    def stop_at(self, point, written=False):
        """The driver that runs, or the next one, stops when it passes that place again; `name@n`: the n-th time. With
        `written` once Spark has also noted in its checkpoint that the batches it had begun by then are done."""
        name, _, count = point.partition("@")
        scratch = self.tmp_path / "stop-at.new"
        scratch.write_text(f"{name}@{count or 1}@{'written' if written else ''}")
        scratch.replace(self.tmp_path / "stop-at")

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

    def count(self, table):
        """Rows, with those that are there twice."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute(f"select count(*) from public.{table.path[-1]}").fetchone()[0]

    def ends(self, topics):
        """By topic and partition the offset behind its last record."""
        asked = {
            TopicPartition(topic, n): OffsetSpec.latest() for topic in topics for n in range(change_streams.PARTITIONS)
        }

        def found():
            # Of a partition that has just been made its broker may not know yet that it leads it.
            with contextlib.suppress(KafkaException):
                futures = self.admin.list_offsets(asked)
                return {(place.topic, place.partition): future.result(30).offset for place, future in futures.items()}
            return None

        return eventually(found, "the ends of the topics")

    def stop(self, process):
        """As a worker does: tell it, then wait."""
        process.stdin.close()
        process.wait(120)

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
    states = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended since it was listed
            states.append(stat.read_text().rpartition(")")[2].split())
    return all(state[0] == "Z" for state in states if int(state[2]) == group)


def is_stopped(process):
    stat = read_stat(process.pid)
    return stat is not None and stat.state in "Tt"


def await_end_of_group(group):
    eventually(lambda: group_is_gone(group), "the end of the Java process", 60)


def load(world, first, count):
    for number in range(first, first + count):
        row = (number, number % 7, f"a{number}", "b" * 50)
        world.stream.insert(NARROW, row)
        world.model.insert((number,), row)
