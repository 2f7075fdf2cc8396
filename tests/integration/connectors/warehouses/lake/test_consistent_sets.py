"""Consistent sets of a lake: whoever reads the versions that the valid set names sees whole transactions of the source only."""

from __future__ import annotations

import random
import signal

import pytest
from cdcworker.connectors.warehouses.consistent_sets import show
from cdcworker.connectors.warehouses.lake.affected_rows import read_place
from cdcworker.connectors.warehouses.lake.consistent_sets import WholeLakeWriter, found_of
from cdcworker.connectors.warehouses.lake.delta import DeltaTables
from cdcworker.connectors.warehouses.lake.iceberg import IcebergTables
from cdcworker.connectors.warehouses.parquet.consistent_sets import WholeParquetWriter
from cdcworker.connectors.warehouses.storage.local_disk import LocalDisk
from cdcworker.schemas import failpoints
from cdcworker.schemas.errors import CdcError

from tests import change_streams
from tests.integration.connectors.spark_world import await_end_of_group, eventually
from tests.integration.connectors.transactions.test_whole_transactions import (
    ACCOUNTS,
    GIRO,
    SAVINGS,
    TOTAL,
    Bank,
    Sink,
    mark,
)

pytestmark = [
    pytest.mark.spark,
    pytest.mark.iceberg,
    pytest.mark.timeout(1800),
    # pyspark leaves the sockets over which Arrow tables come to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]
LAKE_S_MAX = 600


def tables(kind, root):
    return DeltaTables(str(root)) if kind == "delta" else IcebergTables({"type": "hadoop", "warehouse": str(root)})


class Died(BaseException):
    """A driver ends here."""


class Folder:
    """Writers of Parquet files, and what their readers see."""

    def __init__(self, root, name="sink", open_files=None):
        self.root, self.name = root, name
        self.open_files = open_files or (lambda: LocalDisk(root))
        self.reader = self.writer()

    def writer(self):
        return WholeParquetWriter(self.open_files(), self.name, buckets=2)

    def look(self):
        sets = self.reader.valid().read()
        if not sets:
            return None
        (shown,) = sets.values()
        balance = {}
        for topic, member in shown.members.items():
            found = self.reader._rows_of("/".join(member.place), member.state)
            rows = [] if found is None else [row for batch in found.batches for row in batch.to_pylist()]
            balance.update({(topic.rpartition(".")[2], row["id"]): row["balance"] for row in rows})
        return shown.through.position, balance


class Lake:
    """Writers of one lake, and what its readers see."""

    def __init__(self, spark, kind, root, name="sink"):
        self.spark, self.kind, self.root, self.name = spark, kind, root, name
        self.reader = self.writer()

    def writer(self):
        made = WholeLakeWriter(tables(self.kind, self.root), self.name)
        made.attach(lambda: self.spark)
        return made

    def look(self):
        """Position and balances of the valid set; None: there is none yet."""
        session = self.reader._spark()
        sets = self.reader._sets.read(session)
        if not sets:
            return None
        (shown,) = sets.values()
        balance = {}
        for topic, member in shown.members.items():
            found = read_place(session, self.reader._tables, *found_of(member))
            rows = [] if found is None else [row for batch in found.batches for row in batch.to_pylist()]
            balance.update({(topic.rpartition(".")[2], row["id"]): row["balance"] for row in rows})
        return shown.through.position, balance


def looked(looks, lake):
    found = lake.look()
    if found is not None:
        assert sum(found[1].values()) == TOTAL, "a look saw a part of a transaction"
        looks.append(found)


def test_every_set_has_whole_transactions_also_when_a_driver_ends_between_two_tables(spark, tmp_path):
    drivers_end_between_two_tables(Lake(spark, "iceberg", tmp_path / "lake"), tmp_path, 2)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["iceberg", pytest.param("delta", marks=pytest.mark.delta)])
def test_every_set_has_whole_transactions_also_when_drivers_end_again_and_again(spark, tmp_path, kind):
    drivers_end_between_two_tables(Lake(spark, kind, tmp_path / "lake"), tmp_path, 8)


def drivers_end_between_two_tables(lake, tmp_path, steps):
    chance, looks = random.Random(7), []
    stream, marks, epoch = change_streams.Stream(), [], 0
    bank = Bank(stream, chance)
    sink = Sink(lake.writer(), stream, marks, tmp_path, epoch)
    bank.open()
    for number in range(steps):
        for _ in range(3):
            bank.transfer()
        marks.append(mark(len(marks), stream.lsn + 1))
        if number % 2:
            # The first table has been committed, the second has not.
            point = ("sink.after_commit", "sink.before_publish")[number // 2 % 2]
            ended(sink, point)
            looked(looks, lake)
            old, epoch = sink, epoch + 1
            sink = Sink(lake.writer(), stream, marks, tmp_path, epoch)
            # More has come meanwhile; a cut where the one before was, or earlier, cannot be had any more.
            bank.transfer()
            sink.step(chance)
            looked(looks, lake)
            with pytest.raises(CdcError) as caught:
                show(old.writer, {"shop": support_through(stream)}, {})
            assert caught.value.kind == "fenced"
        else:
            sink.step(chance if number else None)
        looked(looks, lake)
    marks.append(mark(len(marks), stream.lsn + 1))
    sink.step(None)
    looked(looks, lake)
    assert looks[-1] == (stream.lsn + 1, bank.balance)
    positions = [position for position, _ in looks]
    assert positions == sorted(positions)
    assert len(set(positions)) > 1


def support_through(stream):
    from cdcworker.connectors.api.table_batch import VisibleThrough

    return VisibleThrough(stream.lsn + 100, 1, ("something",))


def ended(sink, point):
    def at(name):
        if name == point:
            raise Died

    failpoints.listen(at)
    try:
        with pytest.raises(Died):
            sink.step(None)
    finally:
        failpoints.listen(None)


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.parametrize("kind", ["parquet", "iceberg", pytest.param("delta", marks=pytest.mark.delta)])
def test_every_set_has_whole_transactions_also_when_drivers_are_killed(world, kind, request):
    chance, looks = random.Random(3), []
    bank = Bank(world.stream, chance)
    names = [f"{world.name}.public.{of.path[1]}" for of in (GIRO, SAVINGS)]
    for name in names:
        world.create(name)
    world.create(f"{world.name}.watermark", 1)
    root = world.tmp_path / "lake"
    folder = kind == "parquet"
    lake = Folder(root, world.name) if folder else Lake(request.getfixturevalue("spark"), kind, root, world.name)
    config = {"warehouse": kind, "warehouse.path": str(root), "consistency": "source"}

    def send(count):
        for _ in range(count):
            for _ in range(chance.randint(1, 5)):
                bank.transfer()
            world.send(watermark=world.stream.lsn + 1)

    def look():
        found = lake.look()
        if found is not None:
            assert sum(found[1].values()) == TOTAL, "a look saw a part of a transaction"
            looks.append(found)
        return found

    bank.open()
    world.send(watermark=world.stream.lsn + 1)
    for point in ("sink.after_commit=kill@1", "sink.after_commit=kill@3", "sink.before_publish=kill@1"):
        process = world.start(names, point, **config)
        eventually(lambda running=process: send(1) or look() or running.poll() is not None, "a look", LAKE_S_MAX)
        assert process.wait(LAKE_S_MAX) == -signal.SIGKILL
        await_end_of_group(process.pid)
        look()
        send(3)
    process = world.start(names, **config)
    eventually(lambda: look() == (world.stream.lsn + 1, bank.balance), "the last transaction", LAKE_S_MAX)
    world.stop(process)
    assert process.returncode == 0
    positions = [position for position, _ in looks]
    assert positions == sorted(positions)
    assert len(bank.balance) == 2 * ACCOUNTS
