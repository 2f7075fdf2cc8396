"""Dead letters of a ClickHouse warehouse, sent again beside its sink."""

from __future__ import annotations

import contextlib

import pytest
from cdcworker.connectors.api.sink import LedgerAccess
from cdcworker.connectors.warehouses.clickhouse.client import Client
from cdcworker.connectors.warehouses.clickhouse.dead_letters import letters_of
from cdcworker.connectors.warehouses.clickhouse.ledger_admin import ClickHouseLedgerAdmin
from cdcworker.connectors.warehouses.clickhouse.writer import ClickHouseWriter

from tests.contract import dead_letters as contract
from tests.contract.warehouses import TOPIC, rows

pytestmark = pytest.mark.clickhouse
LETTERS = "_cdcworker.dead_letter"


class Sink(contract.Sink):
    def __init__(self, server, **output):
        self.server = server
        super().__init__(**output)

    def open_writer(self, epoch):
        writer = ClickHouseWriter(Client(self.server.place()), "sink", output=self.output)
        writer.fence(epoch)
        writer.claim([TOPIC])
        return writer

    def open_letters(self):
        return letters_of(Client(self.server.place()), "sink", "", self.output)

    def mend(self):
        for (partition, offset, part), content in self.bad.items():
            self.set(f"unhex('{content.hex()}') as {part}", f"partition = {partition} and offset = {offset}")

    def strip(self):
        self.set("'' as headers", "true")

    def set(self, what, where):
        self.server.ask(
            f"insert into {LETTERS} select * replace({what}, version + 1 as version) from {LETTERS} final where {where}"
        )

    def forget(self):
        """Nothing is forgotten: a deleted row stays as the newest version of its key."""

    def rewind(self):
        with contextlib.closing(Client(self.server.place())) as client:
            ClickHouseLedgerAdmin(client, LedgerAccess("sink", (1, 5))).alter({(TOPIC, 0): 0})


@pytest.fixture
def open_sink(clickhouse):
    clickhouse.wipe()
    return lambda **output: Sink(clickhouse, **output)


@pytest.mark.long
class TestClickHouse(contract.Contract):
    def test_a_letter_of_a_topic_that_begins_anew_is_none_of_those_before(self, open_sink):
        """Also where rows are appended, one that comes again is the same row: elsewhere there are two."""
        sink = contract.two_letters(open_sink())
        sink.redrive()
        sink.rewind()
        sink.writer = sink.open_writer((2, 0))
        sink.sent = 0
        sink.apply()
        assert len(sink.left) == 2
        sink.mend()
        assert sink.redrive().rows == 2
        assert rows(sink.writer, "n") == [(0,), (1,), (2,), (3,)]


class TestClickHouseInBrief:
    test_letters = contract.Rows.test_letters_come_back_as_rows_and_are_gone
    test_older = contract.Rows.test_an_older_change_never_wins_over_a_newer_row_nor_over_a_delete
    test_dry = contract.Rows.test_looking_alone_changes_nothing
    test_dies = contract.Contract.test_a_process_that_dies_leaves_each_letter_or_its_row
