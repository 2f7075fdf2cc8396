"""Dead letters of a PostgreSQL warehouse, sent again beside a task that goes on."""

from __future__ import annotations

import time

import psycopg
import pytest
from cdcworker.connectors.warehouses.postgres.redrive import PostgresLetters
from cdcworker.connectors.warehouses.postgres.writer import PostgresWriter
from cdcworker.connectors.warehouses.sql.writer import PRUNE_EVERY_S
from cdcworker.schemas.log import encode_record
from cdcworker.worker.dead_letters import child as letters_main
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.change_streams import NARROW
from tests.contract import dead_letters as contract
from tests.contract import sql_dead_letters as sql_contract
from tests.contract.warehouses import TOPIC, rows

pytestmark = pytest.mark.postgres
BROKEN = b"\x00\x7f\xff\xff\xffbroken"


class Sink(contract.Sink):
    letters_class = PostgresLetters

    def __init__(self, dsn, **output):
        self.target = self.dsn = dsn
        self.opened = []
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
def dsn(shared_database):
    return shared_database


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


class TestBesideTask(sql_contract.BesideTask):
    pass


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
