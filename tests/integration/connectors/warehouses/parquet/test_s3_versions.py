"""Versions of rows in a Parquet warehouse in a bucket, on a real server."""

from __future__ import annotations

import uuid

import pytest
from cdcworker.connectors.api.sink import LedgerAccess
from cdcworker.connectors.warehouses.parquet.writer import ParquetWriter
from cdcworker.connectors.warehouses.table_state import alter
from cdcworker.connectors.warehouses.target_columns import OutputForm

from tests.contract import versions as contract
from tests.contract.warehouses import TOPIC

from .test_s3_contract import Sink

pytestmark = [pytest.mark.s3, pytest.mark.long]
FEW_SEEDS = range(6)


@pytest.fixture
def files(s3):
    return s3.files(uuid.uuid4().hex)


class TestVersions(contract.Versions):
    @pytest.fixture
    def open_writer(self, files):
        self._files = files

        def make(epoch=(1, 0), **output):
            writer = ParquetWriter(files, "sink", output=OutputForm(**{"versions": True, **output}), buckets=2)
            writer.fence(epoch)
            return writer

        return make

    def rewind(self, partition):
        alter(self._files, LedgerAccess("sink", (getattr(self, "epoch", 1), 5)), {(TOPIC, partition): 0})

    def drop_table(self, writer):
        for home in ("public/orders", "public/orders/_cdc"):
            self._files.remove(f"{home}/{name}" for name in self._files.names(home, ""))

    @pytest.mark.parametrize("seed", FEW_SEEDS)
    def test_a_history_is_the_models_after_random_changes(self, open_writer, seed):
        super().test_a_history_is_the_models_after_random_changes(open_writer, seed)

    @pytest.mark.parametrize("seed", FEW_SEEDS)
    def test_it_is_so_when_partitions_come_unevenly_and_offsets_are_reset(self, open_writer, seed):
        super().test_it_is_so_when_partitions_come_unevenly_and_offsets_are_reset(open_writer, seed)


class TestLetters(contract.Letters):
    @pytest.fixture
    def open_sink(self, files):
        return lambda **output: Sink(files, **output)

    @pytest.mark.parametrize("seed", contract.LETTER_SEEDS[:4])
    def test_letters_that_are_sent_again_find_their_places_in_the_history(self, open_sink, seed):
        super().test_letters_that_are_sent_again_find_their_places_in_the_history(open_sink, seed)
