"""Dead letters of a Parquet warehouse, sent again beside its sink."""

from __future__ import annotations

import fcntl
import json
import threading
import time

import pytest
from cdcworker.connectors.api.sink import LedgerAccess
from cdcworker.connectors.warehouses.dead_letters import UNPLACED
from cdcworker.connectors.warehouses.parquet.dead_letters import ParquetOfflineTables, letters_of
from cdcworker.connectors.warehouses.parquet.writer import ParquetWriter
from cdcworker.connectors.warehouses.storage import local_disk
from cdcworker.connectors.warehouses.storage.local_disk import LocalDisk
from cdcworker.connectors.warehouses.table_state import YOUNG_S, alter
from cdcworker.schemas.errors import CdcError

from tests.contract import dead_letters as contract
from tests.contract.warehouses import TOPIC, rows

CAME_S_MAX = 5


class Sink(contract.Sink):
    def __init__(self, root, **output):
        self.root = root
        super().__init__(**output)

    def open_writer(self, epoch):
        writer = ParquetWriter(LocalDisk(self.root), "sink", output=self.output, buckets=2)
        writer.fence(epoch)
        writer.claim([TOPIC])
        return writer

    def open_letters(self):
        return letters_of(LocalDisk(self.root), "sink", self.output, 2)

    def each(self):
        for path in self.root.glob("_cdcworker/dead/sink/*/*.json"):
            said = json.loads(path.read_text())
            yield path, tuple(map(int, path.stem.split("-"))), said

    def mend(self):
        for path, place, said in self.each():
            for name in ("key", "value"):
                if (*place, name) in self.bad:
                    said[name] = self.bad[*place, name].hex()
            path.write_text(json.dumps(said))

    def strip(self):
        for path, _, said in self.each():
            del said["headers"]
            path.write_text(json.dumps(said))

    def forget(self):
        self.writer._pruned[TOPIC] = time.monotonic() - YOUNG_S

    def rewind(self):
        alter(LocalDisk(self.root), LedgerAccess("sink", (1, 5)), {(TOPIC, 0): 0})


class TestParquet(contract.Contract):
    @pytest.fixture
    def open_sink(self, tmp_path):
        return lambda **output: Sink(tmp_path, **output)

    def test_a_file_of_a_step_is_not_taken_for_one_that_died(self, open_sink, monkeypatch):
        sink = open_sink()
        sink.miss_the_first()
        commit = ParquetOfflineTables._commit

        def swept(self, table, batch):
            table.manifests.sweep(table.manifests.newest(), everything=True)
            return commit(self, table, batch)

        monkeypatch.setattr(ParquetOfflineTables, "_commit", swept)
        sink.redrive()
        assert rows(sink.writer, "id") == [(1,), (2,)]

    def test_a_new_owner_takes_nothing_from_under_a_step(self, open_sink, monkeypatch):
        """It comes between the file of the step and the state that names it."""
        sink = open_sink()
        sink.miss_the_first()
        commit, owners = ParquetOfflineTables._commit, []

        def overtaken(self, table, batch):
            if not owners:
                owners.append(sink.open_writer((2, 0)))
            return commit(self, table, batch)

        monkeypatch.setattr(ParquetOfflineTables, "_commit", overtaken)
        assert sink.redrive().rows == 1
        sink.open_writer((3, 0))
        assert (rows(sink.writer, "id"), sink.left) == ([(1,), (2,)], [])

    def test_a_letter_that_somebody_else_has_dropped_stays_away(self, open_sink):
        sink = contract.two_letters(open_sink())
        kept = sink.letters._kept
        first, second = kept.some("", contract.START, 2)
        kept.drop([first.place])
        kept.note([(each, CdcError(UNPLACED, "why")) for each in (first, second)])
        assert [row[2:5] for row in kept.listed("", contract.START, 9)[1]] == [(second.offset, UNPLACED, "why")]
        assert kept.there([first.place, second.place]) == {second.place}

    def test_a_letter_whose_record_is_read_again_does_not_come_back_by_a_note(self, open_sink, monkeypatch):
        """Its sink starts from an offset before it while somebody else writes down why it is still there."""
        sink = contract.two_letters(open_sink())
        kept = sink.letters._kept
        first = kept.some("", contract.START, 1)[0]
        sink.rewind()
        came, lock, write = threading.Event(), fcntl.flock, local_disk.write_synced
        owner = threading.Thread(target=sink.open_writer, args=((2, 0),))

        def locked(file, how):
            if threading.current_thread() is owner and "dead" in file.name:
                came.set()
            lock(file, how)

        def written(path, content):
            if threading.current_thread() is not owner:
                owner.start()
                came.wait(CAME_S_MAX)
            write(path, content)

        monkeypatch.setattr(fcntl, "flock", locked)
        monkeypatch.setattr(local_disk, "write_synced", written)
        kept.note([(first, CdcError(UNPLACED, "why"))])
        owner.join()
        assert sink.left == []

    def test_nobody_sees_a_part_of_a_letter(self, open_sink, monkeypatch):
        sink = contract.two_letters(open_sink())
        before, seen, write = sink.left, [], local_disk.write_synced

        def slow(path, content):
            path.write_bytes(content[: len(content) // 2])
            seen.append(sink.left)
            write(path, content)

        monkeypatch.setattr(local_disk, "write_synced", slow)
        sink.sent = 0
        sink.writer.apply(sink.batch({}))
        assert seen == [before] * len(before)
