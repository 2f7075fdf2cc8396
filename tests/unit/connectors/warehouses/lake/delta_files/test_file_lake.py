"""Delta tables written as files, without Spark: rows, state and files, with deletion vectors and without."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest
from cdcworker.connectors.warehouses.lake.delta_files import file_table
from cdcworker.connectors.warehouses.lake.tables import LakeName
from cdcworker.connectors.warehouses.storage.local_disk import LocalDisk
from cdcworker.connectors.warehouses.table_files.key_index import IndexMemory
from cdcworker.schemas.errors import CdcError
from hypothesis import HealthCheck, example, given, settings

from tests import change_streams
from tests.contract import warehouses as contract
from tests.unit.connectors.arrow import test_reduce as scripts

from .file_lake import opened

ORDERS = LakeName("public", "orders")


def without_truncates(script):
    return [step for step in script if step[0] != "truncate"]


@pytest.mark.parametrize("plain", [False, True], ids=["vectors", "plain"])
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(scripts.actions, scripts.cuts)
@example(scripts.THERE_AND_BACK, range(0, 200, 1))
@example(scripts.AGAIN, range(0, 200, 3))
def test_any_split_into_batches_gives_the_same_rows(tmp_path_factory, plain, script, cuts):
    stream, model = change_streams.Stream(), change_streams.Model()
    scripts.play(without_truncates(script), stream, model)
    writer = opened(tmp_path_factory.mktemp("split"), plain=plain)
    contract.run(stream, writer, cuts)
    found = contract.rows(writer, "id", "n", "a", "big")
    assert {(row[0],): list(row) for row in found} == model.rows


def log_of(writer, place=ORDERS):
    return writer._tables.log(place)


def files_of(writer):
    return list(log_of(writer).snapshot().files.values())


@pytest.fixture
def small(monkeypatch):
    """Files of a few rows are large ones."""
    monkeypatch.setattr(file_table, "SMALL_ROWS", 4)


def filled(root, rows, **more):
    stream, writer = change_streams.Stream(1), opened(root, **more)
    for number in range(rows):
        stream.insert(change_streams.NARROW, (number, 1, f"a{number}", "b"))
    contract.run(stream, writer)
    return stream, writer


def test_a_large_file_gets_a_vector_and_a_small_one_is_written_again(tmp_path, small):
    stream, writer = filled(tmp_path, 40)
    stream.update(change_streams.NARROW, (7, 2, "c", "d"))
    contract.run(stream, writer)
    large, little = sorted(files_of(writer), key=lambda add: -add["size"])
    assert large["deletionVector"]["cardinality"] == 1
    assert "deletionVector" not in little
    stream.update(change_streams.NARROW, (7, 3, "e", "f"))
    contract.run(stream, writer)
    assert len(files_of(writer)) == 2
    assert sorted(contract.rows(writer, "id", "n")) == [(n, 3 if n == 7 else 1) for n in range(40)]


def test_a_file_of_which_much_is_gone_is_written_again(tmp_path, small):
    stream, writer = filled(tmp_path, 40)
    for number in range(20):
        stream.delete(change_streams.NARROW, (number,))
    contract.run(stream, writer)
    assert [add.get("deletionVector") for add in files_of(writer)] == [None]
    assert len(contract.rows(writer, "id")) == 20


def test_a_plain_table_has_no_vectors(tmp_path, small):
    stream, writer = filled(tmp_path, 40, plain=True)
    stream.update(change_streams.NARROW, (7, 2, "c", "d"))
    contract.run(stream, writer)
    assert [add.get("deletionVector") for add in files_of(writer)] == [None]
    assert log_of(writer).snapshot().protocol == {"minReaderVersion": 1, "minWriterVersion": 2}
    assert len(contract.rows(writer, "id")) == 40


def test_many_small_files_become_one(tmp_path):
    stream, writer = change_streams.Stream(1), opened(tmp_path)
    counts = []
    for number in range(3 * file_table.FANOUT):
        stream.insert(change_streams.NARROW, (number, 1, "a", "b"))
        contract.run(stream, writer)
        counts.append(len(files_of(writer)))
    assert max(counts) < file_table.FANOUT
    assert len(contract.rows(writer, "id")) == 3 * file_table.FANOUT


def test_a_file_has_a_bounded_number_of_rows(tmp_path, monkeypatch):
    stream, writer = filled(tmp_path, 40, plain=True)
    monkeypatch.setattr(file_table, "FILE_ROWS_MAX", 40)
    for number in range(100, 130):
        stream.insert(change_streams.NARROW, (number, 1, "a", "b"))
    contract.run(stream, writer)
    stream.update(change_streams.NARROW, (7, 2, "c", "d"))
    stream.update(change_streams.NARROW, (107, 2, "c", "d"))
    contract.run(stream, writer)
    assert sorted(json.loads(add["stats"])["numRecords"] for add in files_of(writer)) == [29, 41]
    assert len(contract.rows(writer, "id")) == 70


def table_of(writer):
    return writer._tables._file_tables.table(ORDERS)


def test_keys_that_no_index_has_room_for_are_looked_up_in_the_files(tmp_path):
    stream, writer = filled(tmp_path, 40)
    table_of(writer)._memory.indexes = IndexMemory(0)
    table_of(writer)._reset()
    for number in (3, 30):
        stream.update(change_streams.NARROW, (number, 2, "c", "d"))
        contract.run(stream, writer)
    assert [row for row in contract.rows(writer, "id", "n") if row[1] == 2] == [(3, 2), (30, 2)]
    assert table_of(writer)._files.index.missing()


def test_rows_that_somebody_else_brings_back_are_changed_and_not_doubled(tmp_path, small):
    stream, writer = filled(tmp_path, 40)
    for number in range(3):
        stream.delete(change_streams.NARROW, (number,))
    contract.run(stream, writer)
    # The index leaves out rows that are gone when it takes in as many as it has.
    for number in range(40, 80):
        stream.insert(change_streams.NARROW, (number, 1, "a", "b"))
    contract.run(stream, writer)
    log = log_of(writer)
    (add,) = (add for add in files_of(writer) if "deletionVector" in add)
    restored = {name: value for name, value in add.items() if name != "deletionVector"}
    assert log.commit(log.snapshot(), [{"remove": add}, {"add": restored}])
    for number in range(1, 5):
        stream.update(change_streams.NARROW, (number, 2, "c", "d"))
    contract.run(stream, writer)
    assert sorted(contract.rows(writer, "id", "n")) == [(n, 2 if 1 <= n < 5 else 1) for n in range(80)]


def test_the_commit_of_a_batch_holds_rows_and_state(tmp_path):
    stream, writer = filled(tmp_path, 3)
    found = log_of(writer).snapshot()
    said = [json.loads(line) for line in log_of(writer).text(found.version).splitlines()]
    state = writer._states[contract.TOPIC]
    assert json.loads(said[0]["commitInfo"]["userMetadata"]) == {"cdcworker.state": state.text()}
    assert said[1]["txn"]["version"] == state.version == found.transactions["cdcworker"]
    stats = json.loads(said[2]["add"]["stats"])
    assert stats["numRecords"] == 3
    again = opened(tmp_path, (1, 1))
    again.claim([contract.TOPIC])
    assert dict(again.ledger()) == {(contract.TOPIC, 0): stream.records[-1]["offset"] + 1}


def test_a_newer_epoch_and_a_second_writer_are_noticed_by_the_commit(tmp_path):
    stream, one = filled(tmp_path, 1)
    stream.insert(change_streams.NARROW, (5, 1, "a", "b"))
    batch = stream.assembler().build(change_streams.arrow(stream.records), one.ledger(), 1)
    found = one._found(contract.TOPIC, ORDERS)
    other = opened(tmp_path, (1, 1))
    other.claim([contract.TOPIC])
    one._found = lambda *_: found
    with pytest.raises(CdcError) as caught:
        one.apply(batch)
    assert caught.value.code == "spark.ledger_moved"
    assert contract.rows(other, "id") == [(0,)]


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("text", [True, False])
def test_a_table_whose_file_is_gone_or_another_is_left_to_sql(tmp_path, fresh, text):
    """Also where the columns of the file are still in memory."""
    stream, writer = filled(tmp_path, 3)
    for path in (tmp_path / "public" / "orders").glob("*.parquet"):
        path.write_text("x") if text else path.unlink()
    writer = opened(tmp_path, (1, 1)) if fresh else writer
    stream.update(change_streams.NARROW, (1, 2, "c", "d"))
    with pytest.raises(AssertionError, match="a statement for Spark"):
        contract.run(stream, writer)


class Far(LocalDisk):
    """Files of which each look costs a request."""

    checks_every_s = 60.0
    looks: ClassVar[list[str]] = []

    def size(self, path):
        self.looks.append(path)
        return super().size(path)


def test_where_a_look_costs_a_request_files_are_looked_at_from_time_to_time(tmp_path):
    stream, now = change_streams.Stream(1), [0.0]
    writer = opened(Far(tmp_path))
    Far.looks.clear()

    def step(number):
        stream.insert(change_streams.NARROW, (number, 1, "a", "b"))
        contract.run(stream, writer)
        table_of(writer)._clock = lambda: now[0]

    step(0)
    table_of(writer)._seen.clear()
    for number in range(1, 4):
        step(number)
    first = list(Far.looks)
    assert len(first) == len(set(first)) == 1
    now[0] = 61.0
    step(4)
    assert len(Far.looks) == 5
