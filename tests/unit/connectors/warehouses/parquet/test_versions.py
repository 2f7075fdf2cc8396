"""Versions of rows in a Parquet warehouse (`output.mode=scd2`)."""

from __future__ import annotations

import shutil

import pytest
from cdcworker.connectors.api.sink import LedgerAccess
from cdcworker.connectors.warehouses.parquet.writer import ParquetWriter
from cdcworker.connectors.warehouses.storage.local_disk import LocalDisk
from cdcworker.connectors.warehouses.table_state import alter
from cdcworker.connectors.warehouses.target_columns import OutputForm

from tests.contract import versions as contract
from tests.contract.warehouses import TOPIC

from .test_dead_letters import Sink


@pytest.fixture
def open_writer(tmp_path):
    def make(epoch=(1, 0), **output):
        writer = ParquetWriter(
            LocalDisk(tmp_path), "sink", output=OutputForm(**{"versions": True, **output}), buckets=2
        )
        writer.fence(epoch)
        return writer

    return make


class TestVersions(contract.Versions):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path):
        self._root = tmp_path

    def rewind(self, partition):
        alter(LocalDisk(self._root), LedgerAccess("sink", (getattr(self, "epoch", 1), 5)), {(TOPIC, partition): 0})

    def drop_table(self, writer):
        shutil.rmtree(self._root / "public" / "orders")


class TestLetters(contract.Letters):
    @pytest.fixture
    def open_sink(self, tmp_path):
        return lambda **output: Sink(tmp_path, **output)
