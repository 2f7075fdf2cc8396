"""The contract of warehouses against a file of DuckDB."""

from __future__ import annotations

import pytest
from cdcworker.connectors.warehouses.duckdb.connection import session
from cdcworker.connectors.warehouses.duckdb.writer import DuckDbWriter
from cdcworker.connectors.warehouses.target_columns import OutputForm

from tests.contract import warehouses as contract


class DuckDb:
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.path = str(tmp_path / "shop.duckdb")

    def _do(self, *statements):
        with session(self.path) as connection:
            for statement in statements:
                connection.do(statement)

    def drop_table(self, writer):
        """And its offsets are reset."""
        self._do("drop table public.orders", f"delete from _cdcworker.ledger where topic = '{contract.TOPIC}'")

    def retype(self, column, kind):
        self._do(
            f"update public.orders set {column} = null",
            f"alter table public.orders alter column {column} set data type {kind} using null",
        )

    def letters(self):
        with session(self.path) as connection:
            return connection.ask('select topic, partition, "offset", code, value from _cdcworker.dead_letter')

    @pytest.fixture
    def open_writer(self, _file):
        writers = []

        def make(epoch=(1, 0), **output):
            writers.append(DuckDbWriter(self.path, "sink", output=OutputForm(**output)))
            writers[-1].fence(epoch)
            return writers[-1]

        yield make
        for writer in writers:
            writer.close()


@pytest.mark.long
class TestDuckDb(DuckDb, contract.ByHand, contract.Contract):
    pass


class TestDuckDbInBrief(DuckDb):
    """What of the contract says most, for the daily runs."""

    test_rows = contract.Contract.test_rows_are_inserted_updated_and_deleted
    test_fence = contract.Contract.test_a_newer_epoch_stops_the_older_writer
    test_null_keys = contract.Contract.test_keys_of_several_columns_and_keys_with_null
    test_columns = contract.Contract.test_columns_are_added_with_their_default_and_widened
    test_letters = contract.Contract.test_a_batch_may_hold_records_that_were_set_aside
