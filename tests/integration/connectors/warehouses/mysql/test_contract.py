"""The contract of warehouses against MariaDB."""

from __future__ import annotations

import pytest
from cdcworker.connectors.warehouses.mysql.writer import MySqlWriter
from cdcworker.connectors.warehouses.target_columns import OutputForm

from tests.contract import warehouses as contract

pytestmark = pytest.mark.mysql


class MySql:
    @pytest.fixture(autouse=True)
    def _server(self, mysql):
        mysql.wipe()
        self.server = mysql

    def drop_table(self, writer):
        """And its offsets are reset."""
        self.server.ask("drop table public.orders", f"delete from _cdcworker.ledger where topic = '{contract.TOPIC}'")

    def retype(self, column, kind):
        self.server.ask(
            f"update public.orders set {column} = null",
            f"alter table public.orders modify column {column} {kind}",
        )

    def letters(self):
        return list(self.server.ask("select topic, `partition`, `offset`, code, value from _cdcworker.dead_letter"))

    @pytest.fixture
    def open_writer(self, mysql):
        writers = []

        def make(epoch=(1, 0), **output):
            writers.append(MySqlWriter(mysql.login(), "sink", output=OutputForm(**output)))
            writers[-1].fence(epoch)
            return writers[-1]

        yield make
        for writer in writers:
            writer.close()


@pytest.mark.long
class TestMySql(MySql, contract.ByHand, contract.Contract):
    pass


class TestMySqlInBrief(MySql):
    """What of the contract says most, for the daily runs."""

    test_rows = contract.Contract.test_rows_are_inserted_updated_and_deleted
    test_twice = contract.Contract.test_the_same_batch_twice_changes_nothing
    test_fence = contract.Contract.test_a_newer_epoch_stops_the_older_writer
    test_null_keys = contract.Contract.test_keys_of_several_columns_and_keys_with_null
    test_columns = contract.Contract.test_columns_are_added_with_their_default_and_widened
    test_letters = contract.Contract.test_a_batch_may_hold_records_that_were_set_aside
