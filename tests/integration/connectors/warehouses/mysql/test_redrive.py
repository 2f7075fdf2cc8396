"""Dead letters of a MySQL warehouse, sent again beside a task that goes on."""

from __future__ import annotations

import time

import pytest
from cdcworker.connectors.warehouses.mysql.redrive import MySqlLetters
from cdcworker.connectors.warehouses.mysql.writer import MySqlWriter
from cdcworker.connectors.warehouses.sql.writer import PRUNE_EVERY_S

from tests.change_streams import ID, column, table
from tests.contract import dead_letters as contract
from tests.contract import sql_dead_letters as sql_contract
from tests.contract.warehouses import TOPIC, rows

pytestmark = [pytest.mark.mysql, pytest.mark.long]


class Sink(contract.Sink):
    letters_class = MySqlLetters

    def __init__(self, server, **output):
        self.server, self.target, self.opened = server, server.login(), []
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

    def execute(self, text):
        return list(self.server.ask(text))

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


class TestBesideTask(sql_contract.BesideTask):
    pass


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
