"""The Parquet warehouse in a bucket: what every warehouse has to do, dead letters and consistent sets, on a real server."""

from __future__ import annotations

import json
import time
import uuid

import pytest
from cdcworker.connectors.api.sink import LedgerAccess
from cdcworker.connectors.warehouses.parquet import consistent_sets as parquetsets
from cdcworker.connectors.warehouses.parquet.dead_letters import letters_of
from cdcworker.connectors.warehouses.parquet.writer import ParquetWriter
from cdcworker.connectors.warehouses.storage.s3_bucket import S3Bucket
from cdcworker.connectors.warehouses.table_state import KEPT, YOUNG_S, alter
from cdcworker.connectors.warehouses.target_columns import OutputForm

from tests.contract import dead_letters, warehouses
from tests.contract.warehouses import TOPIC
from tests.integration.connectors.warehouses.lake.test_consistent_sets import Folder, drivers_end_between_two_tables

pytestmark = [pytest.mark.s3, pytest.mark.long]
LETTERS = "_cdcworker/dead/sink"


@pytest.fixture
def files(s3):
    return s3.files(uuid.uuid4().hex)


def letter_paths(files):
    for topic in files.folders(LETTERS):
        for name in files.names(f"{LETTERS}/{topic}", ".json"):
            partition, offset = map(int, name.removesuffix(".json").split("-"))
            yield f"{LETTERS}/{topic}/{name}", (topic, partition, offset)


class TestWarehouse(warehouses.Contract):
    @pytest.fixture
    def open_writer(self, files):
        self._files = files

        def make(epoch=(1, 0), **output):
            writer = ParquetWriter(files, "sink", output=OutputForm(**output), buckets=2)
            writer.fence(epoch)
            return writer

        return make

    def drop_table(self, writer):
        for home in ("public/orders", "public/orders/_cdc"):
            self._files.remove(f"{home}/{name}" for name in self._files.names(home, ""))

    def letters(self):
        out = []
        for path, place in letter_paths(self._files):
            said = json.loads(self._files.read(path))
            out.append((*place, said["code"], bytes.fromhex(said["value"])))
        return out


class Sink(dead_letters.Sink):
    def __init__(self, files, **output):
        self.files = files
        super().__init__(**output)

    def open_writer(self, epoch):
        writer = ParquetWriter(self.files, "sink", output=self.output, buckets=2)
        writer.fence(epoch)
        writer.claim([TOPIC])
        return writer

    def open_letters(self):
        return letters_of(self.files, "sink", self.output, 2)

    def each(self):
        for path, place in letter_paths(self.files):
            yield path, place[1:], json.loads(self.files.read(path))

    def mend(self):
        for path, place, said in self.each():
            for name in ("key", "value"):
                if (*place, name) in self.bad:
                    said[name] = self.bad[*place, name].hex()
            self.files.replace(path, json.dumps(said).encode())

    def strip(self):
        for path, _, said in self.each():
            del said["headers"]
            self.files.replace(path, json.dumps(said).encode())

    def forget(self):
        self.writer._pruned[TOPIC] = time.monotonic() - YOUNG_S

    def rewind(self):
        alter(self.files, LedgerAccess("sink", (1, 5)), {(TOPIC, 0): 0})


class TestDeadLetters(dead_letters.Contract):
    @pytest.fixture
    def open_sink(self, files):
        return lambda **output: Sink(files, **output)


def test_every_set_has_whole_transactions_also_when_drivers_end_again_and_again(s3, files, tmp_path):
    bucket = Folder(tmp_path / "lake", open_files=lambda: files)
    drivers_end_between_two_tables(bucket, tmp_path, 12)
    # Old ones go, if not with each commit.
    names = files.names("_cdcworker/sets/sink", ".json")
    assert len(names) < parquetsets.KEPT + S3Bucket.commits_per_sweep
    assert len(files.names("public/giro/_cdc", ".json")) < 2 * (KEPT + S3Bucket.commits_per_sweep)
