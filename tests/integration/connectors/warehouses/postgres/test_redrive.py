"""Dead letters of a PostgreSQL warehouse, sent again beside a task that goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import psycopg
import pytest
from cdcworker.connectors.arrow.assembler import Assembler
from cdcworker.connectors.warehouses.postgres.redrive import PostgresLetters
from cdcworker.connectors.warehouses.postgres.writer import PostgresWriter
from cdcworker.connectors.warehouses.sql.writer import PRUNE_EVERY_S
from cdcworker.schemas.log import encode_record
from cdcworker.worker.dead_letters import child as letters_main
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests import change_streams
from tests.change_streams import NARROW
from tests.contract import dead_letters as contract
from tests.contract.warehouses import TOPIC, rows

pytestmark = pytest.mark.postgres
BROKEN = b"\x00\x7f\xff\xff\xffbroken"


class Sink(contract.Sink):
    def __init__(self, dsn, **output):
        self.dsn, self.opened = dsn, []
        super().__init__(**output)

    def open_writer(self, epoch):
        writer = PostgresWriter(self.dsn, "sink", output=self.output)
        self.opened.append(writer)
        writer.fence(epoch)
        writer.claim([TOPIC])
        writer.ledger()
        return writer

    def open_letters(self):
        self.opened.append(PostgresLetters(self.dsn, "sink", output=self.output))
        return self.opened[-1]

    def mend(self):
        for (partition, offset, part), content in self.bad.items():
            self.execute(
                f'update _cdcworker.dead_letter set {part} = %s where partition = %s and "offset" = %s',
                (content, partition, offset),
            )

    def strip(self):
        self.execute("update _cdcworker.dead_letter set headers = null")

    def forget(self):
        """As much later, when no record still to come can be older than a delete."""
        self.writer._pruned = time.monotonic() - 2 * PRUNE_EVERY_S

    def rewind(self):
        self.execute("update _cdcworker.ledger set next_offset = 0")

    def execute(self, text, values=()):
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            found = connection.execute(text, values)
            return found.fetchall() if found.description else []

    def close(self):
        for each in self.opened:
            each.close()


@pytest.fixture(scope="module")
def dsn(postgres):
    name = postgres.create_database()
    yield postgres.dsn(name)
    postgres.drop_database(name)


@pytest.fixture
def open_sink(dsn):
    sinks = []

    def make(**output):
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("set client_min_messages = warning")
            connection.execute("drop schema if exists _cdcworker, public cascade")
            connection.execute("create schema public")
        sinks.append(Sink(dsn, **output))
        return sinks[-1]

    yield make
    for sink in sinks:
        sink.close()


class TestRows(contract.Rows):
    pass


def test_a_delete_is_remembered_as_long_as_there_are_letters(open_sink):
    sink = open_sink()
    sink.stream.insert(NARROW, (1, 1, "a", "b"))
    sink.stream.delete(NARROW, (1,))
    sink.spoil(0)
    sink.apply()
    for number in (2, 3):
        sink.forget()
        sink.stream.insert(NARROW, (number, 1, "a", "b"))
        sink.apply()
    sink.mend()
    assert (sink.redrive().letters, rows(sink.writer, "id")) == (1, [(2,), (3,)])
    sink.forget()
    sink.stream.insert(NARROW, (4, 1, "a", "b"))
    sink.apply()
    assert sink.execute("select count(*) from _cdcworker.tombstone") == [(0,)]


def test_a_letter_that_the_target_refuses_stays_alone(open_sink):
    sink = open_sink()
    for number in range(5):
        sink.stream.insert(NARROW, (number, number, "a", "b"))
    sink.spoil(1, 2, 3)
    sink.apply()
    sink.mend()
    sink.execute("alter table public.orders add check (n <> 2)")
    done = sink.redrive()
    assert (done.letters, done.rows, done.failed, done.left) == (2, 2, 1, 1)
    assert [code for _, code in sink.left] == ["spark.target_value"]
    assert rows(sink.writer, "id") == [(0,), (1,), (3,), (4,)]


def test_a_task_that_goes_on_waits_and_then_knows_of_the_deletes(open_sink):
    sink = open_sink()
    sink.stream.insert(NARROW, (1, 1, "a", "b"))
    sink.stream.delete(NARROW, (1,))
    sink.stream.insert(NARROW, (2, 1, "a", "b"))
    late = sink.stream.records.pop(0)
    sink.spoil(0, part="key")
    del sink.stream.records[1]
    sink.apply()
    sink.mend()
    assert sink.redrive().letters == 1
    # A row of another partition, older than the delete.
    late = {**late, "partition": 1, "offset": 0}
    batch = Assembler(sink.shapes).build(change_streams.arrow([late]), {}, 2)
    waits = threading.Thread(target=sink.writer.apply, args=(batch,))
    with psycopg.connect(sink.dsn) as connection:
        sink.letters._ledger.hold(connection, [TOPIC])
        waits.start()
        waits.join(0.3)
        assert waits.is_alive()
    waits.join(30)
    assert rows(sink.writer, "id") == [(2,)]


KILLED = """
import json, pickle, sys
from cdcworker.connectors.warehouses.dead_letters import START
from cdcworker.connectors.warehouses.postgres.redrive import PostgresLetters
from cdcworker.connectors.arrow.envelope_schemas import EnvelopeSchemas
dsn, schemas = pickle.load(sys.stdin.buffer)
PostgresLetters(dsn, "sink").redrive(EnvelopeSchemas(schemas, wait_s_max=0), "", START, 60)
"""


@pytest.mark.parametrize("point", ["redrive.before_commit", "redrive.after_commit"])
def test_a_process_that_dies_leaves_each_letter_or_its_row(open_sink, point):
    import pickle

    sink = open_sink()
    for number in range(3):
        sink.stream.insert(contract.LOG, (number,))
    sink.spoil(0, 1)
    sink.apply()
    sink.mend()
    child = subprocess.run(
        [sys.executable, "-c", KILLED],
        input=pickle.dumps((sink.dsn, sink.stream.schemas)),
        env={**os.environ, "CDC_FAILPOINTS": f"{point}=kill"},
        timeout=60,
    )
    assert child.returncode == -signal.SIGKILL
    assert len(sink.left) == (2 if "before" in point else 0)
    sink.redrive()
    assert (rows(sink.writer, "n"), sink.left) == ([(0,), (1,), (2,)], [])


@pytest.mark.kafka
def test_a_workers_child_takes_the_schemas_from_their_log(kafka, open_sink):
    sink, topic = open_sink(), "letters.schemas"
    sink.stream.insert(NARROW, (1, 1, "a", "b"))
    sink.stream.insert(NARROW, (2, 1, "a", "b"))
    sink.spoil(0)
    sink.apply()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 2})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 2})
    for record in sink.stream.schemas.records:
        key, value = encode_record(record)
        producer.produce(topic, value, key, 0)
    assert producer.flush(30) == 0
    parts = psycopg.conninfo.conninfo_to_dict(sink.dsn)
    names = {"hostname": "host", "port": "port", "user": "user", "password": "password", "dbname": "dbname"}
    config = {f"warehouse.{name}": str(parts[part]) for name, part in names.items()}
    question = {
        "connector": "sink", "providers": {}, "kafka": {"bootstrap.servers": kafka.bootstrap}, "schema_topic": topic,
        "config": {"connector.class": "spark", "topics": TOPIC, **config},
    }  # fmt: skip
    listed = letters_main.answer({**question, "do": "list", "asked": {"limit": 10}})
    (letter,) = listed["letters"]
    assert (listed["total"], letter["topic"], letter["value_bytes"]) == (1, TOPIC, len(b"broken"))
    asked = {**question, "do": "redrive", "asked": {"after": [TOPIC, 0, -1], "dry_run": False}}
    first = letters_main.answer(asked)
    assert "error" not in first, first
    assert first["causes"][0]["code"] == "spark.undecodable"
    sink.mend()
    done = letters_main.answer(asked)
    assert (done["redriven"], done["rows"], done["left"], done["next"]) == (1, 1, 0, None)
    assert rows(sink.writer, "id") == [(1,), (2,)]
