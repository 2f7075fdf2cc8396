"""Maintenance of Iceberg tables: rows stay at every kept snapshot, whoever writes or looks meanwhile, and files become fewer."""

from __future__ import annotations

import os
import random
import time

import pytest
from cdcworker.connectors.warehouses.lake import iceberg_files
from cdcworker.connectors.warehouses.lake.iceberg import IcebergTables
from cdcworker.connectors.warehouses.lake.iceberg_files import FilesCache
from cdcworker.connectors.warehouses.lake.maintenance.policy import MaintenancePolicy
from cdcworker.connectors.warehouses.lake.maintenance.snapshots import ExpiryGoal
from cdcworker.connectors.warehouses.lake.maintenance_run import LakeMaintenance
from cdcworker.connectors.warehouses.lake.tables import moved
from cdcworker.schemas import failpoints
from cdcworker.schemas.errors import CdcError

from tests import change_streams
from tests.contract import warehouses as contract

from .test_iceberg_files import NAMES, PLACE, mixed
from .test_iceberg_files import lake as lake

pytestmark = [
    pytest.mark.spark,
    pytest.mark.iceberg,
    pytest.mark.timeout(1800),
    # pyspark leaves the sockets over which Arrow tables come to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]
COMPACTS = MaintenancePolicy(expires=False, file_bytes=1 << 20)
AGE_S = 3600.0


@pytest.fixture(autouse=True)
def apart(monkeypatch):
    """Batches join no files by themselves."""
    monkeypatch.setattr(iceberg_files, "MERGED_FILES", 1000)


@pytest.fixture
def listening():
    yield failpoints.listen
    failpoints.listen(None)


def maintained(writer, policy=COMPACTS):
    done = LakeMaintenance(writer, policy, "sink").maintain(lambda: False)
    assert not done["errors"]
    return done


def filled(lake, batches=5, rows=10, **more):
    stream, writer = change_streams.Stream(1), lake.open(**more)
    for batch in range(batches):
        for number in range(rows):
            stream.insert(change_streams.NARROW, (batch * rows + number, 1, f"a{number}", "b"))
        contract.run(stream, writer)
    return stream, writer


def at_snapshot(lake, snapshot):
    """The rows of a snapshot, as Spark reads them."""
    found = lake.sql(f"SELECT {', '.join(NAMES)} FROM {{table}} VERSION AS OF {snapshot}").collect()
    return sorted((tuple(row) for row in found), key=repr)


@pytest.mark.long
def test_random_batches_between_runs_leave_the_rows_of_the_model_at_every_kept_snapshot(lake):
    chance, stream, live = random.Random(7), change_streams.Stream(2), set()
    writer, model, kept = lake.open(), change_streams.MemoryWarehouse(), {}
    for number in range(8):
        mixed(stream, chance, live, chance.randrange(1, 40))
        model.apply(stream.assembler().build(change_streams.arrow(stream.records), model.offsets, number))
        contract.run(stream, writer)
        wanted = sorted((tuple(row) for row in model.rows(change_streams.NARROW).values()), key=repr)
        assert contract.rows(writer, *NAMES) == wanted
        kept[lake.table.currentSnapshot().snapshotId()] = wanted
        if number % 3 == 2:
            maintained(writer)
            kept[lake.table.currentSnapshot().snapshotId()] = wanted
            assert contract.rows(writer, *NAMES) == wanted
    for snapshot, wanted in kept.items():
        assert at_snapshot(lake, snapshot) == wanted


def test_small_files_become_one_in_a_snapshot_that_replaces_and_keeps_the_ledger(lake):
    stream, writer = filled(lake)
    before, ledger, note = contract.rows(writer, *NAMES), dict(writer.ledger()), writer._tables.load(PLACE).note
    done = maintained(writer)
    assert (done["rewritten"]["files"], done["before"]["files"], done["after"]["files"]) == (5, 5, 1)
    snapshot = lake.table.currentSnapshot()
    assert (snapshot.operation(), writer._tables.load(PLACE).note) == ("replace", note)
    assert contract.rows(writer, *NAMES) == before
    again = lake.open(cache=FilesCache())
    again.claim([contract.TOPIC])
    assert dict(again.ledger()) == ledger
    stream.update(change_streams.NARROW, (3, 9, "c", "d"))
    contract.run(stream, again)
    assert len(lake.passes) == 1
    assert dict(contract.rows(again, "id", "n"))[3] == 9


def test_rows_that_a_batch_changes_while_files_are_written_again_are_not_in_the_new_file(lake, listening):
    stream, writer = filled(lake)
    stream.update(change_streams.NARROW, (5, 2, "c", "d"))
    stream.delete(change_streams.NARROW, (25,))
    stream.update(change_streams.NARROW, (49, 2, "c", "d"))
    batches = []

    def at(name):
        if name == "maintenance.files_written" and not batches:
            batches.append(contract.run(stream, writer))

    listening(at)
    done = maintained(writer)
    listening(None)
    assert (done["conflicts"], done["rewritten"]["files"], len(batches)) == (0, 5, 1)
    wanted = {id: 2 if id in (5, 49) else 1 for id in range(50) if id != 25}
    assert dict(contract.rows(writer, "id", "n")) == wanted
    stream.update(change_streams.NARROW, (5, 3, "c", "d"))
    stream.insert(change_streams.NARROW, (25, 3, "c", "d"))
    contract.run(stream, lake.open(cache=FilesCache()))
    assert dict(contract.rows(lake.writer, "id", "n")) == {**wanted, 5: 3, 25: 3}
    assert len(lake.passes) == 1


@pytest.mark.long
def test_tombstones_and_change_logs_become_fewer_files_too(lake):
    stream, writer = filled(lake)
    for number in range(5):
        stream.delete(change_streams.NARROW, (number,))
        contract.run(stream, writer)
    done = maintained(writer)
    assert done["rewritten"]["files"] == 10
    # A delete that comes again, and an older row, change nothing.
    for number in range(5):
        stream.insert(change_streams.NARROW, (number, 7, "c", "d"))
    contract.run(stream, writer)
    assert [row for row in contract.rows(writer, "id", "n") if row[0] < 5] == [(id, 7) for id in range(5)]


@pytest.mark.long
def test_an_owner_that_is_replaced_while_it_writes_files_commits_none(lake, listening):
    _, writer = filled(lake)
    snapshot = lake.table.currentSnapshot().snapshotId()

    def at(name):
        if name == "maintenance.files_written":
            newer = lake.open(cache=FilesCache())
            newer.claim([contract.TOPIC])

    listening(at)
    with pytest.raises(CdcError) as caught:
        maintained(writer)
    assert caught.value.code == "spark.fenced"
    assert len(lake.data_files()) == 5
    assert lake.table.currentSnapshot().parentId() == snapshot


@pytest.mark.long
def test_a_commit_of_somebody_else_meanwhile_is_a_conflict_that_leaves_no_file(lake, listening):
    _, writer = filled(lake)
    before = sorted(lake.folder.rglob("public/orders/data/*.parquet"))

    def at(name):
        if name == "maintenance.before_commit":
            lake.table.updateProperties().set("mine", "yes").commit()
            lake.table.newAppend().commit()

    listening(at)
    done = maintained(writer)
    listening(None)
    assert (done["conflicts"], done["rewritten"]["files"]) == (1, 0)
    assert sorted(lake.folder.rglob("public/orders/data/*.parquet")) == before
    assert maintained(writer)["after"]["files"] == 1


@pytest.mark.long
def test_a_file_that_somebody_deleted_is_told_and_batches_go_on(lake):
    stream, writer = filled(lake)
    next(lake.folder.rglob("public/orders/data/*.parquet")).unlink()
    done = LakeMaintenance(writer, COMPACTS, "sink").maintain(lambda: False)
    assert done["errors"] == {"public.orders": "spark.target_broken"}
    stream.insert(change_streams.NARROW, (900, 1, "a", "b"))
    contract.run(stream, writer)


@pytest.mark.long
def test_a_table_of_another_form_is_left_to_its_owner(lake):
    _, writer = filled(lake)
    lake.sql("ALTER TABLE {table} SET TBLPROPERTIES ('write.format.default' = 'orc')")
    done = maintained(writer)
    assert (done["rewritten"]["files"], done["after"]["files"]) == (0, 5)


def test_files_of_a_commit_of_which_nothing_certain_is_known_stay(lake, monkeypatch):
    """Its answer was lost, and somebody else's commit may have come since."""
    stream, writer = filled(lake)
    before, publish = contract.rows(writer, *NAMES), IcebergTables._publish

    def lost(tables, place, *rest):
        publish(tables, place, *rest)
        raise moved(place) from RuntimeError("CommitStateUnknownException")

    with monkeypatch.context() as patched:
        patched.setattr(IcebergTables, "_publish", lost)
        assert maintained(writer)["conflicts"] == 1
    assert lake.table.currentSnapshot().operation() == "replace"
    assert contract.rows(writer, *NAMES) == before
    stream.update(change_streams.NARROW, (5, 3, "c", "d"))
    contract.run(stream, writer)
    assert dict(contract.rows(writer, "id", "n"))[5] == 3


# -- expiry and orphans -------------------------------------------------------------------------------------------------


def snapshots(lake):
    return [snapshot.snapshotId() for snapshot in lake.table.snapshots()]


def expires(writer, age_s, kept=(), kept_min=None):
    return writer._tables.tend(PLACE, ExpiryGoal(age_s, kept_min), kept)


def test_snapshots_are_expired_with_their_files_but_for_those_that_are_kept(lake):
    stream, writer = filled(lake)
    maintained(writer)
    there = snapshots(lake)
    assert expires(writer, AGE_S) == 0
    assert expires(writer, 0.0, kept=[there[-3]]) == len(there) - 3
    assert len(at_snapshot(lake, there[-3])) == 40
    assert len(list(lake.folder.rglob("public/orders/data/*.parquet"))) == 6
    # Files go with the snapshot that has replaced them.
    stream.insert(change_streams.NARROW, (900, 1, "a", "b"))
    contract.run(stream, writer)
    assert expires(writer, 0.0) == 3
    assert len(list(lake.folder.rglob("public/orders/data/*.parquet"))) == 2
    assert [row[0] for row in contract.rows(writer, "id")] == sorted([*range(50), 900], key=lambda id: repr((id,)))
    again = lake.open(cache=FilesCache())
    again.claim([contract.TOPIC])
    assert dict(again.ledger()) == dict(writer.ledger())


@pytest.mark.long
def test_files_that_no_snapshot_names_go_when_they_are_old(lake):
    _, writer = filled(lake)
    data = lake.folder / "public" / "orders" / "data"
    for path in lake.folder.rglob("*"):
        if path.is_file():
            aged(path, 30)
    for name, days in (("old.parquet", 9), ("young.parquet", 2), ("notes.txt", 9)):
        (data / name).write_bytes(b"x")
        aged(data / name, days)
    wanted = contract.rows(writer, *NAMES)
    # What expiry would have removed is named by snapshots that are there.
    removed = writer._tables.remove_orphans(PLACE, 3 * 86_400, ExpiryGoal(0.0), ())
    left = {path.name for path in data.iterdir() if not path.name.startswith(".")}
    assert ("old.parquet" in left, "young.parquet" in left, "notes.txt" in left) == (False, True, True)
    assert removed == 1
    lake.sql("ALTER TABLE {table} SET TBLPROPERTIES ('gc.enabled' = 'false')")
    (data / "old.parquet").write_bytes(b"x")
    aged(data / "old.parquet", 9)
    assert writer._tables.remove_orphans(PLACE, 3 * 86_400, ExpiryGoal(0.0), ()) == 0
    assert contract.rows(writer, *NAMES) == wanted
    assert len(at_snapshot(lake, snapshots(lake)[0])) == 10


POINTS = ("files_written", "before_commit", "after_commit", "before_expiry", "after_expiry", "before_removal")


@pytest.mark.long
@pytest.mark.parametrize("point", POINTS)
def test_a_run_that_ends_anywhere_leaves_the_rows_and_the_ledger(lake, listening, point):
    """The next owner knows nothing of it, and maintains the tables itself."""
    stream, writer = filled(lake)
    for number in range(3):
        stream.update(change_streams.NARROW, (number, 2, "c", "d"))
        stream.delete(change_streams.NARROW, (10 + number,))
        contract.run(stream, writer)
    (lake.folder / "public" / "orders" / "data" / "old.parquet").write_bytes(b"x")
    aged(lake.folder / "public" / "orders" / "data" / "old.parquet", 9)
    wanted, ledger = contract.rows(writer, *NAMES), dict(writer.ledger())

    def at(name):
        if name == f"maintenance.{point}":
            raise KeyboardInterrupt

    listening(at)
    everything = MaintenancePolicy(file_bytes=1 << 20, age_s=0.0, removes_orphans=True)
    with pytest.raises(KeyboardInterrupt):
        LakeMaintenance(writer, everything, "sink").maintain(lambda: False)
    listening(None)
    again = lake.open(cache=FilesCache())
    again.claim([contract.TOPIC])
    assert contract.rows(again, *NAMES) == wanted
    assert dict(again.ledger()) == ledger
    stream.update(change_streams.NARROW, (4, 5, "c", "d"))
    contract.run(stream, again)
    assert maintained(again, everything)["after"]["files"] <= 2
    assert dict(contract.rows(again, "id", "n")) == {**{row[0]: row[1] for row in wanted}, 4: 5}


def aged(path, days):
    then = time.time() - days * 86_400
    os.utime(path, (then, then))
