"""Dead letters of a MySQL warehouse, sent again beside a task that goes on."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import pytest
from cdcworker.connectors.arrow.assembler import Assembler
from cdcworker.connectors.warehouses.mysql.redrive import MySqlLetters
from cdcworker.connectors.warehouses.mysql.writer import MySqlWriter
from cdcworker.connectors.warehouses.sql.writer import PRUNE_EVERY_S

from tests import change_streams
from tests.change_streams import ID, NARROW, column, table
from tests.contract import dead_letters as contract
from tests.contract.warehouses import TOPIC, rows

pytestmark = [pytest.mark.mysql, pytest.mark.long]


class Sink(contract.Sink):
    def __init__(self, server, **output):
        self.server, self.opened = server, []
        super().__init__(**output)

    def open_writer(self, epoch):
        writer = MySqlWriter(self.server.login(), "sink", output=self.output)
        self.opened.append(writer)
        writer.fence(epoch)
        writer.claim([TOPIC])
        writer.ledger()
        return writer

    def open_letters(self):
        self.opened.append(MySqlLetters(self.server.login(), "sink", output=self.output))
        return self.opened[-1]

    def mend(self):
        for (partition, offset, part), content in self.bad.items():
            place = f"where `partition` = {partition} and `offset` = {offset}"
            self.server.ask(f"update _cdcworker.dead_letter set `{part}` = x'{content.hex()}' {place}")

    def strip(self):
        self.server.ask("update _cdcworker.dead_letter set headers = null")

    def forget(self):
        """As much later, when no record still to come can be older than a delete."""
        self.writer._pruned = time.monotonic() - 2 * PRUNE_EVERY_S

    def rewind(self):
        self.server.ask("update _cdcworker.ledger set next_offset = 0")

    def close(self):
        for each in self.opened:
            each.close()


@pytest.fixture
def open_sink(mysql):
    sinks = []

    def make(**output):
        mysql.wipe()
        sinks.append(Sink(mysql, **output))
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
    assert sink.server.ask("select count(*) from _cdcworker.tombstone") == ((0,),)


def test_a_letter_that_the_target_refuses_stays_alone(open_sink):
    sink = open_sink()
    for number in range(5):
        sink.stream.insert(NARROW, (number, number, "a", "b"))
    sink.spoil(1, 2, 3)
    sink.apply()
    sink.mend()
    sink.server.ask("alter table public.orders add check (n <> 2)")
    done = sink.redrive()
    assert (done.letters, done.rows, done.failed, done.left) == (2, 2, 1, 1)
    assert [code for _, code in sink.left] == ["spark.target_value"]
    assert rows(sink.writer, "id") == [(0,), (1,), (3,), (4,)]


def test_a_letter_gets_the_columns_that_it_needs_but_for_a_dry_run(open_sink):
    sink = open_sink()
    wider = table(ID, column("n", "int", "integer"), column("note", "string", "text"))
    sink.stream.insert(table(ID, column("n", "int", "integer")), (1, 1))
    sink.stream.insert(wider, (2, 2, "later"))
    sink.spoil(1)
    sink.apply()
    sink.mend()
    assert (sink.redrive(dry_run=True).rows, sink.server.ask("show columns from public.orders like 'note'")) == (1, ())
    assert (sink.redrive().letters, rows(sink.writer, "id", "note")) == (1, [(1, None), (2, "later")])


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
    with sink.letters._transaction() as connection:
        sink.letters._ledger.hold(connection, [TOPIC])
        waits.start()
        waits.join(0.3)
        assert waits.is_alive()
    waits.join(30)
    assert rows(sink.writer, "id") == [(2,)]


KILLED = """
import pickle, sys
from cdcworker.connectors.warehouses.dead_letters import START
from cdcworker.connectors.warehouses.mysql.redrive import MySqlLetters
from cdcworker.connectors.arrow.envelope_schemas import EnvelopeSchemas
login, schemas = pickle.load(sys.stdin.buffer)
MySqlLetters(login, "sink").redrive(EnvelopeSchemas(schemas, wait_s_max=0), "", START, 60)
"""


@pytest.mark.parametrize("point", ["redrive.before_commit", "redrive.after_commit"])
def test_a_process_that_dies_leaves_each_letter_or_its_row(open_sink, point):
    sink = open_sink()
    for number in range(3):
        sink.stream.insert(contract.LOG, (number,))
    sink.spoil(0, 1)
    sink.apply()
    sink.mend()
    child = subprocess.run(
        [sys.executable, "-c", KILLED],
        input=pickle.dumps((sink.server.login(), sink.stream.schemas)),
        env={**os.environ, "CDC_FAILPOINTS": f"{point}=kill"},
        timeout=60,
    )
    assert child.returncode == -signal.SIGKILL
    assert len(sink.left) == (2 if "before" in point else 0)
    sink.redrive()
    assert (rows(sink.writer, "n"), sink.left) == ([(0,), (1,), (2,)], [])
