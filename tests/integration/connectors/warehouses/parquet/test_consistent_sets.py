"""Consistent sets of Parquet files: whoever reads the manifests that the valid set names sees whole transactions only."""

from __future__ import annotations

import shutil

import pytest
from cdcworker.connectors.api.table_batch import VisibleThrough
from cdcworker.connectors.warehouses.consistent_sets import PublishedSet, SetMember
from cdcworker.connectors.warehouses.parquet import consistent_sets as parquetsets
from cdcworker.connectors.warehouses.parquet.consistent_sets import ParquetSets
from cdcworker.connectors.warehouses.parquet.verify_tables import ParquetTables
from cdcworker.connectors.warehouses.storage.local_disk import LocalDisk
from cdcworker.connectors.warehouses.table_state import KEPT, Manifests
from cdcworker.schemas.errors import CdcError

from tests import change_streams
from tests.integration.connectors.transactions.test_whole_transactions import TOPICS, Bank, Sink, mark
from tests.integration.connectors.warehouses.lake.test_consistent_sets import (
    Folder,
    drivers_end_between_two_tables,
    ended,
)


def test_every_set_has_whole_transactions_also_when_drivers_end_again_and_again(tmp_path):
    drivers_end_between_two_tables(Folder(tmp_path / "lake"), tmp_path, 12)


def moved(tmp_path, times):
    """A folder whose tables have had many versions since its first set."""
    import random

    folder, stream, marks = Folder(tmp_path / "lake"), change_streams.Stream(), []
    bank = Bank(stream, random.Random(3))
    sink = Sink(folder.writer(), stream, marks, tmp_path, 0)
    bank.open()
    for _ in range(times):
        bank.transfer()
        marks.append(mark(len(marks), stream.lsn + 1))
        sink.step(None)
    return folder, bank, sink


def test_readers_of_a_set_find_its_files_after_many_batches_without_one(tmp_path):
    folder, bank, sink = moved(tmp_path, 2)
    before = folder.look()
    for _ in range(2 * KEPT):
        # Of a transaction that is not whole yet nothing is shown, however often its tables are written.
        bank.transfer()
        batch = sink.stream.assembler().build(change_streams.arrow(sink.stream.records), sink.writer.ledger(), 1)
        sink.writer.apply(batch)
    assert folder.look() == before
    sink.writer.claim(["shop.public.giro", "shop.public.savings"])
    assert folder.look() == before
    assert dict(folder.reader.rows("shop.public.giro").applied) != {}
    found = {
        tuple(place): state.state.version
        for place, state in ParquetTables(LocalDisk(folder.root), "sink", True).found()
    }
    newest = {
        tuple(place): state.state.version for place, state in ParquetTables(LocalDisk(folder.root), "sink").found()
    }
    assert found.keys() == newest.keys()
    assert all(found[place] < newest[place] for place in found)


def test_a_table_that_was_dropped_is_missed_and_begun_anew_by_who_does_not_know_it(tmp_path):
    folder, bank, sink = moved(tmp_path, 2)
    shutil.rmtree(folder.root / "public" / "giro")
    with pytest.raises(CdcError) as caught:
        sink.writer.claim(TOPICS)
    assert (caught.value.code, caught.value.where) == ("spark.target_gone", {"topic": "shop.public.giro"})
    again = Sink(folder.writer(), sink.stream, sink.marks, tmp_path, 1)
    assert {topic for topic, _ in again.writer.ledger()} == {"shop.public.savings", "shop.watermark"}
    again.marks.append(mark(len(again.marks), again.stream.lsn + 1))
    # Ended before the set that names the new table: the next one finds a table that the set does not mean.
    ended(again, "sink.before_publish")
    last = Sink(folder.writer(), sink.stream, sink.marks, tmp_path, 2)
    bank.transfer()
    last.marks.append(mark(len(last.marks), last.stream.lsn + 1))
    last.step(None)
    assert folder.look() == (bank.stream.lsn + 1, bank.balance)


def test_old_sets_and_what_only_they_name_go_away(tmp_path):
    folder, bank, _ = moved(tmp_path, 4 * parquetsets.KEPT)
    assert folder.look() == (bank.stream.lsn + 1, bank.balance)
    assert len(list((folder.root / "_cdcworker" / "sets" / "sink").glob("*.json"))) == parquetsets.KEPT
    tables = [path for path in folder.root.glob("public/*") if path.is_dir()]
    assert all(len(list((table / "_cdc").glob("*.json"))) <= 2 * KEPT for table in tables)


def test_of_two_who_publish_the_older_one_is_fenced_and_the_second_notices(tmp_path):
    folder, _, sink = moved(tmp_path, 1)
    manifests = Manifests(LocalDisk(folder.root), "public/giro")
    shown = {
        "shop": PublishedSet(
            VisibleThrough(9, 1), {"shop.public.giro": SetMember(("public", "giro"), manifests.newest(), 1)}
        )
    }
    one, other, newer = (ParquetSets(LocalDisk(folder.root), "sink") for _ in range(3))
    one.claim((1, 0))
    other.claim((1, 0))
    one.publish((1, 0), shown, {})
    with pytest.raises(CdcError) as caught:
        other.publish((1, 0), shown, {})
    assert caught.value.code == "spark.ledger_moved"
    newer.claim((2, 0))
    with pytest.raises(CdcError) as caught:
        one.publish((1, 0), shown, {})
    assert caught.value.kind == "fenced"
    with pytest.raises(CdcError) as caught:
        one.claim((1, 0))
    assert caught.value.kind == "fenced"
    assert sink.writer.ledger()[("shop.watermark", 0)] == 1
