"""Maintenance of Delta tables by their files, without Spark: rows stay, whoever writes or looks meanwhile, and files become fewer."""

from __future__ import annotations

import dataclasses
import json
import os
import time

import numpy as np
import pyarrow as pa
import pytest
from cdcworker.connectors.api.table_batch import VisibleThrough
from cdcworker.connectors.warehouses.consistent_sets import PublishedSet, SetMember
from cdcworker.connectors.warehouses.lake.consistent_sets import WholeLakeWriter
from cdcworker.connectors.warehouses.lake.delta_files import data_files, file_table
from cdcworker.connectors.warehouses.lake.delta_files.file_table import FileTable
from cdcworker.connectors.warehouses.lake.maintenance.policy import MaintenancePolicy
from cdcworker.connectors.warehouses.lake.maintenance.rewrite import DataFileView, live_rows
from cdcworker.connectors.warehouses.lake.maintenance.snapshots import ExpiryGoal
from cdcworker.connectors.warehouses.lake.maintenance_run import LakeMaintenance
from cdcworker.connectors.warehouses.lake.tables import LakeName
from cdcworker.schemas import failpoints
from cdcworker.schemas.errors import CdcError
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests import change_streams
from tests.contract import warehouses as contract
from tests.unit.connectors.arrow import test_reduce as scripts

from .file_lake import everything, opened

ORDERS = LakeName("public", "orders")
OTHER = LakeName("public", "other")
COMPACTS = MaintenancePolicy(expires=False, file_bytes=1 << 20)
PLAIN = pytest.mark.parametrize("plain", [False, True], ids=["vectors", "plain"])
EXAMPLES = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))


def maintained(writer, policy=COMPACTS):
    return LakeMaintenance(writer, policy, "sink").maintain(lambda: False)


def log_of(writer, place=ORDERS):
    return writer._tables.log(place)


def files_of(writer, place=ORDERS):
    return list(log_of(writer, place).snapshot().files.values())


@pytest.fixture(autouse=True)
def apart(monkeypatch):
    """Batches join no files by themselves."""
    monkeypatch.setattr(file_table, "FANOUT", 1000)


@pytest.fixture
def listening():
    yield failpoints.listen
    failpoints.listen(None)


def filled(root, batches=6, rows=20, **more):
    stream, writer = change_streams.Stream(1), opened(root, **more)
    for batch in range(batches):
        for number in range(rows):
            stream.insert(change_streams.NARROW, (batch * rows + number, 1, f"a{number}", "b"))
        contract.run(stream, writer)
    return stream, writer


def numbers(writer):
    return dict(contract.rows(writer, "id", "n"))


@PLAIN
@EXAMPLES
@given(scripts.actions, st.lists(st.integers(1, 6), max_size=30), st.sets(st.integers(0, 30)))
@example(scripts.THERE_AND_BACK, [1] * 8, set(range(31)))
def test_whatever_batches_come_a_run_between_them_changes_no_row(tmp_path_factory, plain, script, cuts, runs):
    stream, model = change_streams.Stream(), change_streams.Model()
    scripts.play([step for step in script if step[0] != "truncate"], stream, model)
    writer, whole = opened(tmp_path_factory.mktemp("runs"), plain=plain), stream.records
    end = 0
    for number, size in enumerate([*cuts, len(whole)]):
        end += size
        stream.records = whole[:end]
        contract.run(stream, writer)
        if number in runs:
            before = contract.rows(writer, "id", "n", "a", "big")
            done = maintained(writer)
            assert done is None or not done["errors"]
            assert contract.rows(writer, "id", "n", "a", "big") == before
    found = contract.rows(writer, "id", "n", "a", "big")
    assert {(row[0],): list(row) for row in found} == model.rows


@PLAIN
def test_small_files_become_one_whose_commit_says_that_no_row_changed(tmp_path, plain):
    stream, writer = filled(tmp_path, plain=plain)
    before, ledger = contract.rows(writer, "id", "n", "a"), dict(writer.ledger())
    done = maintained(writer)
    assert (done["rewritten"]["files"], done["before"]["files"], done["after"]["files"]) == (6, 6, 1)
    assert done["whole"]
    told = [json.loads(line) for line in log_of(writer).text(log_of(writer).snapshot().version).splitlines()]
    changes = [action[name]["dataChange"] for action in told for name in ("add", "remove") if name in action]
    assert changes == [False] * 7
    assert contract.rows(writer, "id", "n", "a") == before
    again = opened(tmp_path, (2, 0), plain=plain)
    again.claim([contract.TOPIC])
    assert dict(again.ledger()) == ledger
    stream.update(change_streams.NARROW, (3, 9, "c", "d"))
    contract.run(stream, again)
    assert numbers(again)[3] == 9


def test_a_run_goes_on_where_the_bounds_of_the_one_before_ended_it(tmp_path):
    _, writer = filled(tmp_path)
    bounded = MaintenancePolicy(expires=False, file_bytes=1 << 20, run_files_max=4)
    assert [maintained(writer, bounded)["after"]["files"] for _ in range(2)] == [3, 1]
    _, writer = filled(tmp_path / "second")
    sizes = [add["size"] for add in files_of(writer)]
    small = MaintenancePolicy(expires=False, file_bytes=3 * max(sizes) + 10, run_files_max=4)
    assert [maintained(writer, small)["after"]["files"] for _ in range(2)] == [4, 2]


@PLAIN
def test_rows_that_a_batch_changes_while_files_are_written_again_are_not_in_the_new_file(tmp_path, plain, listening):
    stream, writer = filled(tmp_path, plain=plain)
    stream.update(change_streams.NARROW, (5, 2, "c", "d"))
    stream.delete(change_streams.NARROW, (25,))
    stream.update(change_streams.NARROW, (119, 2, "c", "d"))
    batches = []

    def at(name):
        if name == "maintenance.files_written" and not batches:
            batches.append(contract.run(stream, writer))

    listening(at)
    done = maintained(writer)
    listening(None)
    # What has no deletion vectors is written again whole by a batch, and so not by maintenance as well.
    assert done["conflicts"] == plain
    assert len(batches[0]) == 1
    wanted = {id: 2 if id in (5, 119) else 1 for id in range(120) if id != 25}
    assert numbers(writer) == wanted
    # Also for a writer that knows nothing of it yet.
    assert numbers(opened(tmp_path, (2, 0), plain=plain)) == wanted
    stream.update(change_streams.NARROW, (5, 3, "c", "d"))
    contract.run(stream, writer)
    assert numbers(writer) == {**wanted, 5: 3}


def test_a_commit_of_somebody_else_meanwhile_is_a_conflict_that_leaves_no_file(tmp_path, listening):
    _, writer = filled(tmp_path)

    def at(name):
        if name == "maintenance.before_commit":
            log = log_of(opened(tmp_path, (1, 0)))
            log.commit(log.snapshot(), [{"commitInfo": {"timestamp": 0}}])

    listening(at)
    done = maintained(writer)
    listening(None)
    assert (done["conflicts"], done["rewritten"]["files"], done["errors"]) == (1, 0, {})
    assert len(list(tmp_path.glob("public/orders/*.parquet"))) == 6
    assert maintained(writer)["after"]["files"] == 1


def test_an_owner_that_was_replaced_changes_nothing(tmp_path):
    _, writer = filled(tmp_path)
    newer = opened(tmp_path, (2, 0))
    newer.claim([contract.TOPIC])
    version = log_of(newer).snapshot().version
    with pytest.raises(CdcError) as caught:
        maintained(writer)
    assert caught.value.code == "spark.fenced"
    assert log_of(newer).snapshot().version == version
    assert maintained(newer)["after"]["files"] == 1


def test_an_owner_that_is_replaced_while_it_writes_files_commits_none(tmp_path, listening):
    _, writer = filled(tmp_path)
    newer = []

    def at(name):
        if name == "maintenance.files_written":
            newer.append(opened(tmp_path, (2, 0)))
            newer[0].claim([contract.TOPIC])

    listening(at)
    with pytest.raises(CdcError) as caught:
        maintained(writer)
    assert caught.value.code == "spark.fenced"
    assert len(files_of(newer[0])) == 6


def test_a_file_that_somebody_deleted_stops_its_table_alone(tmp_path):
    stream, writer = filled(tmp_path, 3)
    second = dataclasses.replace(change_streams.NARROW, path=OTHER)
    for number in range(3):
        stream.insert(second, (number, 1, "a", "b"))
        contract.run(stream, writer, topic=contract.OTHER)
    writer.claim([contract.TOPIC, contract.OTHER])
    missing = next(tmp_path.glob("public/orders/*.parquet"))
    missing.unlink()
    done = maintained(writer)
    assert done["errors"] == {"public.orders": "spark.target_broken"}
    assert done["whole"]
    assert len(files_of(writer, OTHER)) == 1


def test_a_full_disk_is_told_and_the_next_run_tries_again(tmp_path, monkeypatch):
    _, writer = filled(tmp_path)
    files = type(log_of(writer).files)

    def full(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(files, "write", full)
    assert maintained(writer)["errors"] == {"public.orders": "spark.target_unreachable"}
    monkeypatch.undo()
    assert maintained(writer)["after"]["files"] == 1


def test_nothing_is_done_before_a_table_is_claimed_or_outside_of_the_window(tmp_path):
    assert maintained(opened(tmp_path)) is None
    _, writer = filled(tmp_path)
    now = time.gmtime()
    minute = (now.tm_hour * 60 + now.tm_min + 60) % 1440
    shut = MaintenancePolicy(window=type(COMPACTS.window)(minute, (minute + 60) % 1440))
    assert maintained(writer, shut) is None


# -- orphans ------------------------------------------------------------------------------------------------------------

DAY = 86_400.0


def aged(path, days):
    then = time.time() - days * DAY
    os.utime(path, (then, then))


def orphans(writer, age_s=None, older_s=3 * DAY, kept=()):
    return writer._tables.remove_orphans(ORDERS, older_s, ExpiryGoal(age_s), kept)


def test_files_that_no_version_names_go_when_they_are_old(tmp_path):
    _, writer = filled(tmp_path)
    folder = tmp_path / "public" / "orders"
    live = set(folder.glob("*.parquet"))
    for name, days in (("old.parquet", 9), ("young.parquet", 2), ("deletion_vector_x.bin", 9), ("notes.txt", 9)):
        (folder / name).write_bytes(b"x")
        aged(folder / name, days)
    for path in live:
        aged(path, 30)
    assert orphans(writer, DAY) == 2
    assert set(folder.glob("*.parquet")) == {*live, folder / "young.parquet"}
    assert (folder / "notes.txt").exists()


def test_the_files_of_versions_within_the_kept_age_stay(tmp_path):
    _, writer = filled(tmp_path)
    version, rows = log_of(writer).snapshot(), contract.rows(writer, "id", "n")
    maintained(writer)
    for path in (tmp_path / "public" / "orders").glob("*.parquet"):
        aged(path, 30)
    assert orphans(writer, 60.0) == 0
    table = writer._tables._file_tables.table(ORDERS)
    schema = writer._tables.rows(ORDERS).schema
    found = everything(table, version, table.layout(version), schema)
    assert sorted(zip(found["id"].to_pylist(), found["n"].to_pylist(), strict=True), key=repr) == rows
    assert orphans(writer, 0.0) == 6
    assert contract.rows(writer, "id", "n") == rows


def test_the_files_of_a_version_that_a_consistent_set_names_stay(tmp_path):
    _, writer = filled(tmp_path)
    version = log_of(writer).snapshot().version
    maintained(writer)
    assert orphans(writer, 0.0, kept=[version]) == 0
    assert orphans(writer, 0.0, kept=[version + 1]) == 6


def test_nothing_is_deleted_where_the_log_does_not_tell_of_all_versions_that_count(tmp_path):
    _, writer = filled(tmp_path)
    maintained(writer)
    log = tmp_path / "public" / "orders" / "_delta_log"
    (log / f"{3:020d}.json").unlink()
    assert orphans(writer, 0.0) == 0
    for number in range(3):
        (log / f"{number:020d}.json").unlink()
    # The first one that is left is younger than what is to be kept.
    assert orphans(writer, DAY) == 0
    assert orphans(writer, 0.0) == 6


def test_a_table_tells_how_long_its_removed_files_stay(tmp_path):
    _, writer = filled(tmp_path)
    maintained(writer)
    log = log_of(writer)

    def told(text):
        before = log.snapshot()
        settings = {**before.metadata["configuration"], "delta.deletedFileRetentionDuration": text}
        log.commit(before, [{"metaData": {**before.metadata, "configuration": settings}}])

    assert orphans(writer) == 0
    told("interval 2 fortnights")
    assert orphans(writer) == 0
    told("interval 0 seconds")
    assert orphans(writer) == 6


def test_the_versions_that_the_valid_set_names_and_the_next_one_will_are_kept(tmp_path):
    _, writer = filled(tmp_path)
    sets = WholeLakeWriter(writer._tables, "sink")
    assert sets.kept_versions(ORDERS) == set()
    state = writer._states[contract.TOPIC]
    other = SetMember(OTHER, state, 9)
    members = {contract.TOPIC: SetMember(tuple(ORDERS), state, 3), contract.OTHER: other}
    sets._sets.shown = {"shop": PublishedSet(VisibleThrough(1, 1), members)}
    sets._places[contract.TOPIC] = ORDERS
    sets.moved_on(contract.TOPIC, 5)
    assert sets.kept_versions(ORDERS) == {3, 5}
    assert sets.shared_places() == (LakeName("_cdcworker", "set_sink"),)


def test_a_run_of_another_task_of_the_sink_leaves_tables_that_it_has_not_claimed(tmp_path):
    _, writer = filled(tmp_path)
    other = opened(tmp_path)
    other.claim([contract.OTHER])
    assert maintained(other) is None
    assert len(files_of(writer)) == 6


def test_tables_take_turns_where_a_run_has_too_little_for_all(tmp_path):
    stream, writer = filled(tmp_path)
    second = dataclasses.replace(change_streams.NARROW, path=OTHER)
    for number in range(6):
        stream.insert(second, (number, 1, "a", "b"))
        contract.run(stream, writer, topic=contract.OTHER)
    writer.claim([contract.TOPIC, contract.OTHER])
    runs = LakeMaintenance(writer, MaintenancePolicy(expires=False, run_files_max=3), "sink")
    for _ in range(2):
        assert runs.maintain(lambda: False)["rewritten"]["files"] == 3
    assert sorted(len(files_of(writer, place)) for place in (ORDERS, OTHER)) == [4, 4]


def test_nothing_is_maintained_before_it_is_known_what_the_valid_set_names(tmp_path, monkeypatch):
    _, first = filled(tmp_path)
    writer, done = WholeLakeWriter(first._tables, "sink"), []

    def claim(*_):
        done.append(maintained(writer))
        writer._sets._found = first._tables.load(ORDERS)

    monkeypatch.setattr(writer._sets, "claim", claim)
    writer.attach(first._new_session)
    for epoch in (2, 3):
        writer.fence((epoch, 0))
        writer.claim([contract.TOPIC])
        assert dict(writer.maintained()) == {contract.TOPIC: ORDERS}
    assert done == [None, None]


def test_tombstones_go_also_where_snapshots_are_kept(tmp_path):
    stream, writer = filled(tmp_path)
    stream.delete(change_streams.NARROW, (3,))
    contract.run(stream, writer)
    assert not maintained(writer, MaintenancePolicy(expires=False, compacts=False))["errors"]
    (said,) = (text for text in writer._new_session().said if text.startswith("DELETE"))
    assert "graves_" in said


def test_files_of_old_versions_stay_where_these_are_not_expired(tmp_path):
    _, writer = filled(tmp_path)
    maintained(writer)
    for path in tmp_path.rglob("*.parquet"):
        aged(path, 30)
    keeps = MaintenancePolicy(expires=False, age_s=0.0, removes_orphans=True, orphan_age_s=0.0)
    assert maintained(writer, keeps)["removed_files"] == 0
    assert orphans(writer, 0.0) == 6


@pytest.mark.parametrize("rows", [1, 3])
def test_a_file_with_another_number_of_rows_is_not_written_again(rows):
    view = DataFileView("f", None, 10, 2, 10, np.array([True, False]))
    with pytest.raises(OSError, match="number of rows"):
        live_rows([view], lambda _: [pa.table({"id": list(range(rows))})])


def test_a_large_file_is_read_in_groups_until_memory_takes_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(data_files, "ROW_GROUP", 5)
    _, writer = filled(tmp_path, batches=3)
    read, groups = [], FileTable._groups

    def told(*arguments):
        for group in groups(*arguments):
            read.append(group.num_rows)
            yield group

    monkeypatch.setattr(FileTable, "_groups", told)
    before = contract.rows(writer, "id", "n", "a")
    done = maintained(writer)
    assert (done["errors"], done["after"]["files"]) == ({}, 1)
    assert read == [5] * 12
    assert contract.rows(writer, "id", "n", "a") == before
