"""Versions of rows in a DuckDB warehouse (`output.mode=scd2`)."""

from __future__ import annotations

import pytest
from cdcworker.connectors.warehouses.duckdb.connection import session
from cdcworker.connectors.warehouses.duckdb.writer import DuckDbWriter
from cdcworker.connectors.warehouses.target_columns import OutputForm

from tests.contract import versions as contract
from tests.contract.warehouses import TOPIC
from tests.version_model import RandomChanges, VersionedStream


class File:
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.path = str(tmp_path / "shop.duckdb")

    @pytest.fixture
    def open_writer(self, _file):
        def make(epoch=(1, 0), **output):
            writer = DuckDbWriter(self.path, "sink", output=OutputForm(**{"versions": True, **output}))
            writer.fence(epoch)
            return writer

        return make

    def ask(self, *statements):
        with session(self.path) as connection:
            return [connection.ask(statement) for statement in statements][-1]

    def rewind(self, partition):
        where = f"topic = '{TOPIC}' and partition = {partition}"
        self.ask(f"update _cdcworker.ledger set next_offset = 0, applied = null where {where}")

    def drop_table(self, writer):
        self.ask("drop table public.orders", f"delete from _cdcworker.ledger where topic = '{TOPIC}'")


@pytest.mark.long
class TestVersions(File, contract.Versions):
    pass


class TestVersionsInBrief(File):
    """What of the contract says most, for the daily runs, and what the documentation shows."""

    test_null_keys = contract.Versions.test_keys_of_several_columns_and_keys_with_null

    def test_an_as_of_query_has_the_rows_of_that_time(self, open_writer):
        stream, writer = VersionedStream(), open_writer()
        RandomChanges(stream, 5, reads=False).run(30)
        then, wanted = stream.events[-1].at, sorted(stream.rows.values())
        RandomChanges(stream, 6, reads=False).run(30)
        contract.run(stream, writer)
        at = f"timestamptz '{then:%Y-%m-%d %H:%M:%S.%f}+00'"
        where = f"_cdc_valid_from <= {at} and (_cdc_valid_to > {at} or _cdc_valid_to is null)"
        assert sorted(self.ask(f"select id, n, a, big from public.orders where {where}")) == wanted
