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
from cdcworker.connectors.spark.letters import INCOMPLETE, ROWLESS, UNPLACED
from cdcworker.connectors.spark.postgres import PRUNE_EVERY_S, PostgresWriter
from cdcworker.connectors.spark.records import Assembler
from cdcworker.connectors.spark.redrive import START, PostgresLetters
from cdcworker.connectors.spark.schemas import Shapes
from cdcworker.connectors.spark.shaping import Output
from cdcworker.schemas.log import encode_record
from cdcworker.worker import letters_main
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ..unit.spark import support
from ..unit.spark.support import ID, NARROW, column, table
from ..unit.spark.warehouse_contract import TOPIC, rows

pytestmark = pytest.mark.postgres
BROKEN = b"\x00\x7f\xff\xff\xffbroken"


class Sink:
    """A task's writer, and the letters beside it; `mend` lets the records say again what they had said."""

    def __init__(self, dsn, **output):
        self.dsn, self.output = dsn, Output(**output)
        self.stream = support.Stream(1)
        self.writer = PostgresWriter(dsn, "sink", output=self.output)
        self.writer.fence((1, 0))
        self.writer.claim([TOPIC])
        self.letters = PostgresLetters(dsn, "sink", output=self.output)
        self.sent, self.bad = 0, {}

    @property
    def shapes(self):
        return Shapes(self.stream.schemas, wait_s_max=0)

    def spoil(self, *numbers, part="value"):
        for number in numbers:
            record = self.stream.records[number]
            self.bad[record["partition"], record["offset"], part] = record[part]
            record[part] = b"broken"

    def apply(self, ledger=None):
        batch = Assembler(self.shapes, self.output.log, tolerant=True).build(
            support.arrow(self.stream.records[self.sent :]), ledger or self.writer.ledger(), 1
        )
        self.sent = len(self.stream.records)
        return self.writer.apply(batch)

    def mend(self):
        """In place of a bug that is fixed."""
        for (partition, offset, part), content in self.bad.items():
            self.execute(
                f'update _cdcworker.dead_letter set {part} = %s where partition = %s and "offset" = %s',
                (content, partition, offset),
            )

    def redrive(self, **more):
        return self.letters.redrive(self.shapes, "", START, 60, log=self.output.log, **more)

    def execute(self, text, values=()):
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            found = connection.execute(text, values)
            return found.fetchall() if found.description else []

    @property
    def left(self):
        return self.execute('select "offset", code from _cdcworker.dead_letter order by "offset"')

    def close(self):
        self.writer.close()
        self.letters.close()


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


def test_letters_come_back_as_rows_and_are_gone(open_sink):
    sink = open_sink()
    for number in range(4):
        sink.stream.insert(NARROW, (number, 1, "a", "b"))
    sink.spoil(1, 2)
    sink.apply()
    assert rows(sink.writer, "id") == [(0,), (3,)]
    first = sink.redrive()
    assert (first.letters, first.failed, first.left) == (0, 2, 2)
    assert set(first.causes) == {("spark.undecodable", "the value has no Confluent frame")}
    sink.mend()
    done = sink.redrive()
    assert (done.letters, done.rows, done.failed, done.left, done.next) == (2, 2, 0, 0, None)
    assert rows(sink.writer, "id", "n") == [(0, 1), (1, 1), (2, 1), (3, 1)]
    assert sink.redrive().letters == 0


def test_an_older_change_never_wins_over_a_newer_row_nor_over_a_delete(open_sink):
    sink = open_sink()
    sink.stream.insert(NARROW, (1, 1, "old", "b"))
    sink.stream.insert(NARROW, (2, 1, "old", "b"))
    sink.stream.insert(NARROW, (3, 1, "old", "b"))
    sink.spoil(0, 1)
    sink.stream.update(NARROW, (1, 2, "new", "b"))
    sink.stream.delete(NARROW, (2,))
    sink.apply()
    sink.mend()
    done = sink.redrive()
    assert (done.letters, done.rows, done.left) == (2, 0, 0)
    assert rows(sink.writer, "id", "n", "a") == [(1, 2, "new"), (3, 1, "old")]


def test_a_delete_is_remembered_as_long_as_there_are_letters(open_sink):
    sink = open_sink()
    sink.stream.insert(NARROW, (1, 1, "a", "b"))
    sink.stream.delete(NARROW, (1,))
    sink.spoil(0)
    sink.apply()
    for number in (2, 3):
        # Much later, when no record still to come can be older than the delete.
        sink.writer._pruned = time.monotonic() - 2 * PRUNE_EVERY_S
        sink.stream.insert(NARROW, (number, 1, "a", "b"))
        sink.apply()
    sink.mend()
    assert (sink.redrive().letters, rows(sink.writer, "id")) == (1, [(2,), (3,)])
    sink.writer._pruned = time.monotonic() - 2 * PRUNE_EVERY_S
    sink.stream.insert(NARROW, (4, 1, "a", "b"))
    sink.apply()
    assert sink.execute("select count(*) from _cdcworker.tombstone") == [(0,)]


def test_letters_of_one_key_do_not_carry_old_columns_over_newer_ones_between_them(open_sink):
    sink = open_sink()
    sink.stream.insert(NARROW, (1, 1, "a", "first"))
    sink.stream.update(NARROW, (1, 2, "b", "second"))
    sink.stream.update(NARROW, (1, 3, "c", "third"))
    sink.stream.update(NARROW, (1, 4, "d", None), unchanged=(3,))
    sink.spoil(1, 3)
    sink.apply()
    sink.mend()
    done = sink.redrive()
    assert (done.letters, done.rows) == (2, 1)
    assert rows(sink.writer, "n", "a", "big") == [(4, "d", "third")]


def test_a_delete_is_sent_again_with_its_tombstone_and_keeps_older_rows_out(open_sink):
    sink = open_sink()
    sink.stream.insert(NARROW, (1, 1, "a", "b"))
    sink.stream.update(NARROW, (1, 2, "a", "b"))
    sink.stream.delete(NARROW, (1,))
    sink.spoil(1)
    sink.spoil(2, 3, part="key")
    sink.apply()
    assert rows(sink.writer, "n") == [(1,)]
    sink.mend()
    done = sink.redrive()
    assert (done.letters, done.failed, done.left) == (3, 0, 0)
    assert rows(sink.writer, "n") == []


def test_a_delete_without_a_position_stays(open_sink):
    sink = open_sink()
    sink.stream.insert(NARROW, (1, 1, "a", "b"))
    sink.stream.delete(NARROW, (1,))
    del sink.stream.records[1]
    sink.spoil(1, part="key")
    sink.apply()
    sink.mend()
    assert (sink.redrive().failed, [code for _, code in sink.left]) == (1, [UNPLACED])
    assert rows(sink.writer, "n") == [(1,)]


def test_a_part_of_a_row_waits_for_the_row(open_sink):
    sink = open_sink()
    sink.stream.insert(NARROW, (1, 1, "a", "b"))
    sink.stream.update(NARROW, (1, 2, "a", None), unchanged=(3,))
    sink.stream.insert(NARROW, (2, 1, "a", "b"))
    sink.spoil(0, 1)
    sink.apply()
    row, update = sink.bad.items()
    sink.bad = dict([update])
    sink.mend()
    assert (sink.redrive().failed, [code for _, code in sink.left]) == (2, ["spark.undecodable", ROWLESS])
    sink.bad = dict([row])
    sink.mend()
    assert (sink.redrive().letters, rows(sink.writer, "id", "n", "big")) == (2, [(1, 2, "b"), (2, 1, "b")])


def test_letters_of_a_version_that_kept_no_headers_stay(open_sink):
    sink = open_sink()
    sink.stream.insert(NARROW, (1, 1, "a", "b"))
    sink.spoil(0)
    sink.apply()
    sink.mend()
    sink.execute("update _cdcworker.dead_letter set headers = null")
    assert (sink.redrive().failed, [code for _, code in sink.left]) == (1, [INCOMPLETE])


def test_an_older_record_goes_into_the_columns_as_they_are_called_now(open_sink):
    def shape(called):
        return table(ID, column("n", "int", "integer", column_id=2), column(called, "string", "text", column_id=3))

    sink = open_sink()
    sink.stream.insert(shape("a"), (1, 1, "one"))
    sink.stream.insert(shape("a"), (2, 1, "two"))
    sink.stream.insert(shape("b"), (3, 1, "three"))
    sink.spoil(1)
    sink.apply()
    sink.mend()
    assert (sink.redrive().letters, rows(sink.writer, "id", "b")) == (1, [(1, "one"), (2, "two"), (3, "three")])


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


def test_a_change_log_gets_each_letter_once(open_sink):
    sink = open_sink(log=True)
    sink.stream.insert(NARROW, (1, 1, "a", "b"))
    sink.stream.update(NARROW, (1, 2, "a", "b"))
    sink.spoil(0)
    sink.apply()
    sink.mend()
    assert sink.redrive(dry_run=True).rows == 1
    assert (rows(sink.writer, "n"), len(sink.left)) == ([(2,)], 1)
    for _ in range(2):
        sink.redrive()
    assert rows(sink.writer, "n") == [(1,), (2,)]


def test_letters_that_the_ledger_stands_before_are_left_to_the_task(open_sink):
    sink = open_sink(log=True)
    sink.stream.insert(NARROW, (1, 1, "a", "b"))
    sink.stream.insert(NARROW, (2, 1, "a", "b"))
    sink.spoil(0)
    sink.apply()
    sink.mend()
    sink.execute("update _cdcworker.ledger set next_offset = 0")
    done = sink.redrive()
    assert (done.letters, done.left, rows(sink.writer, "id")) == (0, 1, [(2,)])
    sink.writer.ledger()
    assert sink.left == []


def test_rows_of_a_table_without_a_key_stay_behind_a_truncate(open_sink):
    keyless = table(column("n", "int", "integer"), key=())
    sink = open_sink()
    for number in range(3):
        sink.stream.insert(keyless, (number,))
    sink.stream.truncate(keyless)
    sink.stream.insert(keyless, (9,))
    sink.spoil(0)
    sink.apply()
    before = rows(sink.writer, "n")
    sink.mend()
    assert (sink.redrive().letters, rows(sink.writer, "n")) == (1, before)


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
    batch = Assembler(sink.shapes).build(support.arrow([late]), {}, 2)
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
from cdcworker.connectors.spark.redrive import START, PostgresLetters
from cdcworker.connectors.spark.schemas import Shapes
dsn, schemas = pickle.load(sys.stdin.buffer)
PostgresLetters(dsn, "sink").redrive(Shapes(schemas, wait_s_max=0), "", START, 60)
"""


@pytest.mark.parametrize("point", ["redrive.before_commit", "redrive.after_commit"])
def test_a_process_that_dies_leaves_each_letter_or_its_row(open_sink, point):
    import pickle

    keyless = table(column("n", "int", "integer"), key=())
    sink = open_sink()
    for number in range(3):
        sink.stream.insert(keyless, (number,))
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
