"""Versions of rows in a Parquet warehouse (`output.mode=scd2`)."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
from cdcworker.connectors.api.sink import LedgerAccess
from cdcworker.connectors.api.table_batch import VisibleThrough
from cdcworker.connectors.warehouses.parquet.consistent_sets import WholeParquetWriter
from cdcworker.connectors.warehouses.parquet.verify_tables import ParquetTables
from cdcworker.connectors.warehouses.parquet.writer import ParquetWriter
from cdcworker.connectors.warehouses.storage.local_disk import LocalDisk
from cdcworker.connectors.warehouses.table_state import alter
from cdcworker.connectors.warehouses.target_columns import OutputForm
from pyarrow import dataset

from tests import change_streams
from tests.contract import versions as contract
from tests.contract.warehouses import TOPIC
from tests.version_model import RandomChanges, VersionedStream, assert_equal, versions

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


def test_an_as_of_query_has_the_rows_of_that_time(tmp_path, open_writer):
    """As the documentation has it."""
    stream, writer = VersionedStream(), open_writer()
    RandomChanges(stream, 5, reads=False).run(30)
    at, wanted = stream.events[-1].at, sorted(stream.rows.values())
    RandomChanges(stream, 6, reads=False).run(30)
    contract.run(stream, writer)
    home = tmp_path / "public" / "orders"
    newest = max((home / "_cdc").glob("*.json"))
    files = [str(home / file["path"]) for file in json.loads(newest.read_text())["files"]]
    begun, ended = dataset.field("_cdc_valid_from"), dataset.field("_cdc_valid_to")
    rows = dataset.dataset(files).to_table(filter=(begun <= at) & (ended.is_null() | (ended > at)))
    assert sorted(tuple(row[name] for name in ("id", "n", "a", "big")) for row in rows.to_pylist()) == wanted


def test_whole_transactions_are_shown_with_their_versions(tmp_path):
    """consistency=source."""
    stream = VersionedStream(partitions=1)
    RandomChanges(stream, 4).run(40)
    writer = WholeParquetWriter(LocalDisk(tmp_path), "sink", output=OutputForm(versions=True), buckets=2)
    writer.fence((1, 0))
    writer.claim([TOPIC])
    for start in range(0, len(stream.records), 15):
        records = change_streams.arrow(stream.records[start : start + 15])
        batch = stream.assembler(keeps_versions=True).build(records, writer.ledger(), start)
        writer.apply_all([replace(batch, through={"shop": VisibleThrough(start + 1, start + 1)})])
    assert_equal(versions(writer, TOPIC), stream.wanted())


def test_a_comparison_reads_the_current_versions_alone(tmp_path, open_writer):
    stream, writer = VersionedStream(), open_writer()
    RandomChanges(stream, 7).run(30)
    contract.run(stream, writer)
    tables, found = ParquetTables(LocalDisk(tmp_path), "sink"), []
    ((place, table),) = tables.found()

    def work(batches):
        for batch in batches:
            found.extend(zip(*(column.to_pylist() for column in batch.columns), strict=True))
            yield batch

    tables.read(place, table, ["id", "n", "a", "big"], work, "")
    assert sorted(found, key=repr) == sorted(stream.rows.values(), key=repr)


def test_a_truncate_before_the_first_row_ends_what_comes_behind_it(open_writer):
    stream, writer = VersionedStream(partitions=1), open_writer()
    stream.insert(change_streams.NARROW, (1, 0, "a", "b"))
    stream.truncate(change_streams.NARROW)
    late, cut = stream.records
    writer.claim([TOPIC])
    batch = stream.assembler(keeps_versions=True).build(change_streams.arrow([cut]), {}, 1)
    # In a topic without a schema of its key nobody knows a column yet.
    bare = [replace(part, key=()) for part in batch.tables]
    writer.apply(replace(batch, tables=bare, offsets={(TOPIC, 1): (0, 1)}, applied={}))
    contract.apply(stream, writer, [late], 2)
    assert_equal(versions(writer, TOPIC), stream.wanted())
