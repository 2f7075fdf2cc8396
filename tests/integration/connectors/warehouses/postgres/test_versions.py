"""Versions of rows in a PostgreSQL warehouse (`output.mode=scd2`)."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time

import psycopg
import pytest
from cdcworker.connectors.warehouses.postgres.writer import PostgresWriter
from cdcworker.connectors.warehouses.sql.writer import PRUNE_EVERY_S
from cdcworker.connectors.warehouses.target_columns import OutputForm

from tests import change_streams
from tests.change_streams import NARROW
from tests.contract import versions as contract
from tests.contract.warehouses import TOPIC
from tests.version_model import RandomChanges, VersionedStream, assert_equal, versions

from .test_redrive import Sink

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def dsn(shared_database):
    return shared_database


@pytest.fixture
def clean(emptied):
    return emptied


def execute(dsn, text, values=()):
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("set client_min_messages = warning")
        found = connection.execute(text, values)
        return found.fetchall() if found.description else []


@pytest.fixture
def open_writer(clean):
    writers = []

    def make(epoch=(1, 0), **output):
        writers.append(PostgresWriter(clean, "sink", output=OutputForm(**{"versions": True, **output})))
        writers[-1].fence(epoch)
        return writers[-1]

    yield make
    for writer in writers:
        writer.close()


class TestVersions(contract.Versions):
    @pytest.fixture(autouse=True)
    def _place(self, clean):
        self.dsn = clean

    def rewind(self, partition):
        execute(
            self.dsn,
            "update _cdcworker.ledger set next_offset = 0, applied = null where topic = %s and partition = %s",
            (TOPIC, partition),
        )

    def drop_table(self, writer):
        execute(self.dsn, "drop table public.orders")
        execute(self.dsn, "delete from _cdcworker.ledger where topic = %s", (TOPIC,))


class TestLetters(contract.Letters):
    @pytest.fixture
    def open_sink(self, clean):
        sinks = []

        def make(**output):
            sinks.append(Sink(clean, **output))
            return sinks[-1]

        yield make
        for sink in sinks:
            sink.close()


KILLED = """
import pickle, sys
from cdcworker.connectors.arrow.assembler import Assembler
from cdcworker.connectors.arrow.envelope_schemas import EnvelopeSchemas
from cdcworker.connectors.warehouses.postgres.writer import PostgresWriter
from cdcworker.connectors.warehouses.target_columns import OutputForm
dsn, epoch, schemas, topic, pieces = pickle.load(sys.stdin.buffer)
writer = PostgresWriter(dsn, "sink", output=OutputForm(versions=True))
writer.fence((epoch, 0))
writer.claim([topic])
assembler = Assembler(EnvelopeSchemas(schemas, wait_s_max=0), keeps_versions=True)
for piece in pieces:
    batch = assembler.build(piece, writer.ledger(), 1)
    if batch.offsets:
        writer.apply(batch)
"""


POINTS = [
    pytest.param(("sink.before_commit@2", "sink.after_commit"), id="commit"),
    pytest.param(
        ("sink.table_done@2", "sink.merge", "sink.staged@2", "sink.after_commit"), marks=pytest.mark.long, id="steps"
    ),
]


@pytest.mark.parametrize("points", POINTS)
def test_processes_that_are_killed_in_a_batch_leave_each_version_once(clean, open_writer, points):
    stream = VersionedStream()
    RandomChanges(stream, 3).run(40)
    records = stream.records
    pieces = [change_streams.arrow(records[start : start + 20]) for start in range(0, len(records), 20)]
    for epoch, point in enumerate(points, 1):
        name, _, nth = point.partition("@")
        child = subprocess.run(
            [sys.executable, "-c", KILLED],
            input=pickle.dumps((clean, epoch, stream.schemas, TOPIC, pieces)),
            env={**os.environ, "CDC_FAILPOINTS": f"{name}=kill@{nth or 1}"},
            timeout=120,
        )
        assert child.returncode == -signal.SIGKILL
    writer = open_writer((9, 0))
    contract.run(stream, writer)
    assert_equal(versions(writer, TOPIC), stream.wanted())


def test_an_as_of_query_has_the_rows_of_that_time(clean, open_writer):
    stream, writer = VersionedStream(), open_writer()
    RandomChanges(stream, 5, reads=False).run(30)
    then, rows = stream.events[-1].at, sorted(stream.rows.values())
    RandomChanges(stream, 6, reads=False).run(30)
    contract.run(stream, writer)
    found = execute(
        clean,
        """select id, n, a, big from public.orders
           where _cdc_valid_from <= %(at)s and (_cdc_valid_to > %(at)s or _cdc_valid_to is null) order by id""",
        {"at": then},
    )
    assert sorted(found) == rows


def test_positions_may_have_a_name_of_their_own_which_may_change(clean, open_writer):
    stream = VersionedStream()
    stream.insert(NARROW, (1, 1, "a", "b"))
    contract.run(stream, open_writer(position="seen_at"))
    stream.update(NARROW, (1, 2, "a", "b"))
    contract.run(stream, open_writer((2, 0), position="changed_at"))
    found = execute(clean, "select n, _cdc_is_current from public.orders order by changed_at")
    assert found == [(1, False), (2, True)]


def test_two_current_versions_of_a_key_are_impossible(clean, open_writer):
    stream, writer = VersionedStream(), open_writer()
    stream.insert(NARROW, (1, 1, "a", "b"))
    contract.run(stream, writer)
    with pytest.raises(psycopg.errors.UniqueViolation):
        execute(clean, "insert into public.orders (id, _cdc_position, _cdc_is_current) values (1, 'x', true)")


def test_a_fresh_row_of_a_key_that_is_there_is_merged(clean, open_writer):
    """Somebody has lost its delete, as when a topic is recreated."""
    stream, writer = VersionedStream(partitions=1), open_writer()
    stream.insert(NARROW, (1, 1, "a", "b"))
    contract.run(stream, writer)
    stream.insert(NARROW, (1, 2, "a", "b"))
    stream.insert(NARROW, (2, 1, "a", "b"))
    contract.run(stream, writer)
    assert_equal(versions(writer, TOPIC), stream.wanted())


def test_a_sink_of_current_rows_and_one_of_versions_read_the_same_topic(clean, open_writer):
    stream, current = VersionedStream(), PostgresWriter(clean, "other", schema="mirror")
    RandomChanges(stream, 8).run(40)
    current.fence((1, 0))
    current.claim([TOPIC])
    current.apply(stream.assembler().build(change_streams.arrow(stream.records), {}, 1))
    current.close()
    contract.run(stream, open_writer())
    names = "id, n, a, big from"
    found = execute(clean, f"select {names} public.orders where _cdc_is_current order by id")
    assert found == execute(clean, f"select {names} mirror.orders order by id") == sorted(stream.rows.values())


def test_deletes_are_forgotten_once_nothing_older_can_come_and_truncates_never(clean, open_writer):
    stream, writer = VersionedStream(partitions=1), open_writer()
    stream.insert(NARROW, (1, 1, "a", "b"))
    stream.truncate(NARROW)
    stream.insert(NARROW, (2, 1, "a", "b"))
    stream.delete(NARROW, (2,))
    contract.run(stream, writer)
    ends = "select count(*) filter (where key = ''), count(*) from _cdcworker.version_end"
    assert execute(clean, ends) == [(1, 2)]
    for id in (3, 4):
        writer._pruned = time.monotonic() - 2 * PRUNE_EVERY_S
        stream.insert(NARROW, (id, 1, "a", "b"))
        contract.run(stream, writer)
    assert execute(clean, ends) == [(1, 1)]
    assert_equal(versions(writer, TOPIC), stream.wanted())


def test_sinks_of_current_rows_have_no_bookkeeping_of_versions(clean, open_writer):
    open_writer(versions=False)
    assert execute(clean, "select to_regclass('_cdcworker.version_end')") == [(None,)]
