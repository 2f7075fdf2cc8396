"""The contract of warehouses against ClickHouse's engine."""

from __future__ import annotations

import pytest
from cdcworker.connectors.warehouses.clickhouse.client import Client
from cdcworker.connectors.warehouses.clickhouse.writer import ClickHouseWriter
from cdcworker.connectors.warehouses.target_columns import OutputForm

from tests.contract import warehouses as contract

pytestmark = pytest.mark.clickhouse


class ClickHouse:
    @pytest.fixture(autouse=True)
    def _server(self, clickhouse):
        clickhouse.wipe()
        self.server = clickhouse

    def drop_table(self, writer):
        """And its offsets are reset."""
        self.server.ask(
            "drop table public.orders sync", f"delete from _cdcworker.state where topic = '{contract.TOPIC}'"
        )

    def retype(self, column, kind):
        kind = {"double": "Float64", "date": "Date32"}[kind]
        self.server.ask(
            f"alter table public.orders update {column} = null where true settings mutations_sync = 2",
            f"alter table public.orders drop column {column}",
            f"alter table public.orders add column {column} Nullable({kind}) comment 'cdc.colid=2'",
        )

    def letters(self):
        found = self.server.rows("select topic, partition, offset, code, value from _cdcworker.dead_letter final")
        return [(row[0].decode(), row[1], row[2], row[3].decode(), row[4]) for row in found]

    @pytest.fixture
    def open_writer(self, clickhouse):
        writers = []

        def make(epoch=(1, 0), **output):
            writers.append(ClickHouseWriter(Client(clickhouse.place()), "sink", output=OutputForm(**output)))
            writers[-1].fence(epoch)
            return writers[-1]

        yield make
        for writer in writers:
            writer.close()


@pytest.mark.long
class TestClickHouse(ClickHouse, contract.ByHand, contract.Contract):
    pass


class TestClickHouseInBrief(ClickHouse):
    """What of the contract says most, for the daily runs."""

    test_rows = contract.Contract.test_rows_are_inserted_updated_and_deleted
    test_twice = contract.Contract.test_the_same_batch_twice_changes_nothing
    test_fence = contract.Contract.test_a_newer_epoch_stops_the_older_writer
    test_moves = contract.Contract.test_a_row_that_changes_its_key_takes_its_unchanged_columns_along
    test_truncate = contract.Contract.test_a_truncate_takes_what_came_before_and_nothing_later
    test_null_keys = contract.Contract.test_keys_of_several_columns_and_keys_with_null
    test_columns = contract.Contract.test_columns_are_added_with_their_default_and_widened
    test_soft = contract.Contract.test_deleted_rows_can_stay_and_come_back
    test_log = contract.Contract.test_a_change_log_holds_every_change_in_order
    test_letters = contract.Contract.test_a_batch_may_hold_records_that_were_set_aside
