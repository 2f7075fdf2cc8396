"""Iceberg tables whose rows are written as files by the sink itself: equal to what SQL makes, for Iceberg's own readers."""

from __future__ import annotations

import json
import random

import pytest
from cdcworker.connectors.warehouses.lake.iceberg import IcebergTables
from cdcworker.connectors.warehouses.lake.iceberg_files import MERGED_FILES, FilesCache
from cdcworker.connectors.warehouses.lake.tables import LakeName
from cdcworker.connectors.warehouses.lake.writer import LakeWriter
from cdcworker.connectors.warehouses.parquet.writer import ParquetWriter
from cdcworker.connectors.warehouses.storage.local_disk import LocalDisk
from cdcworker.connectors.warehouses.target_columns import OutputForm
from cdcworker.schemas.errors import CdcError

from tests import change_streams
from tests.contract import warehouses as contract

pytestmark = [
    pytest.mark.spark,
    pytest.mark.iceberg,
    pytest.mark.timeout(1800),
    # pyspark leaves the sockets over which Arrow tables come to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]
PLACE = LakeName("public", "orders")
NAMES = ("id", "n", "a", "big")


class Lake:
    """One lake, and writers over it of which each goes on where the one before ended."""

    def __init__(self, spark, folder):
        self.spark, self.folder, self.writers = spark, folder, []

    def open(self, by_files=True, cache=None, **output):
        tables = IcebergTables({"type": "hadoop", "warehouse": str(self.folder)}, by_files=by_files, cache=cache)
        self.writer = LakeWriter(tables, "sink", output=OutputForm(**output))
        self.writers.append(self.writer)
        self.writer.attach(lambda: self.spark)
        self.writer.fence((1, len(self.writers)))
        self.passes = contract.passes_of(tables, "commit_rows")
        return self.writer

    @property
    def table(self):
        tables = self.writer._tables
        return tables._catalog.loadTable(tables._id(PLACE))

    def sql(self, text):
        return self.writer._spark().sql(text.format(table=self.writer._tables.name(PLACE)))

    def data_files(self):
        tasks = self.table.newScan().planFiles()
        found = tasks.iterator()
        parser, out = self.spark._jvm.org.apache.iceberg.ScanTaskParser, []
        while found.hasNext():
            out.append(json.loads(parser.toJson(found.next())))
        tasks.close()
        return out


@pytest.fixture
def lake(spark, tmp_path):
    made = Lake(spark, tmp_path / "lake")
    yield made
    for writer in made.writers:
        writer.close()


def mixed(stream, chance, live, count):
    """Inserts, updates that leave a column out, changes of the key, deletes, and keys that come back."""
    for _ in range(count):
        dice, id = chance.random(), chance.randrange(60)
        if id not in live:
            stream.insert(change_streams.NARROW, (id, chance.randrange(9), "a", f"large {id}"))
            live.add(id)
        elif dice < 0.5:
            kept = chance.choice([(), (3,)])
            stream.update(change_streams.NARROW, (id, chance.randrange(9), "b", None if kept else "new"), kept)
        elif dice < 0.7 and (new := chance.randrange(60)) not in live:
            kept = chance.choice([(), (3,)])
            stream.move(change_streams.NARROW, (id,), (new, 0, "c", None if kept else "moved"), kept)
            live.symmetric_difference_update({id, new})
        elif dice < 0.995:
            stream.delete(change_streams.NARROW, (id,))
            live.remove(id)
        else:
            stream.truncate(change_streams.NARROW)
            live.clear()


@pytest.mark.sampled(3, "files")
@pytest.mark.parametrize("soft", [False, pytest.param(True, marks=pytest.mark.long)], ids=["hard", "soft"])
@pytest.mark.parametrize("memory", [2**30, pytest.param(0, marks=pytest.mark.long)], ids=["index", "scan"])
def test_random_batches_leave_the_rows_that_a_merge_in_memory_leaves(lake, tmp_path, memory, soft):
    """Also where the writer changes, one of which works in SQL, and where a batch comes twice."""
    chance, stream, live = random.Random(memory + soft), change_streams.Stream(2), set()
    other = ParquetWriter(LocalDisk(tmp_path / "parquet"), "sink", output=OutputForm(soft=soft), buckets=2)
    other.fence((1, 0))
    writer, files = lake.open(cache=FilesCache(memory), soft=soft), 0
    for number in range(9):
        if number in (3, 5):
            files += len(lake.passes)
            writer = lake.open(by_files=number == 5, cache=FilesCache(memory), soft=soft)
        mixed(stream, chance, live, chance.randrange(1, 60))
        contract.run(stream, other)
        contract.run(stream, writer)
        names = (*NAMES, "_cdc_deleted") if soft else NAMES
        assert contract.rows(writer, *names) == contract.rows(other, *names), number
    assert files + len(lake.passes) > 5
    other.close()


@pytest.mark.sampled(3, "files")
def test_a_table_that_changes_hands_goes_on_by_either_way_and_is_not_read_again_for_each_batch(lake, monkeypatch):
    from cdcworker.connectors.warehouses.lake import iceberg_rows

    reads, read = [], iceberg_rows.read_files
    monkeypatch.setattr(iceberg_rows, "read_files", lambda *args: reads.append(1) or read(*args))
    stream = change_streams.Stream(1)
    for number, by_files in enumerate((False, True, True, False, True)):
        writer = lake.open(by_files)
        reads.clear()
        for id in range(3):
            stream.insert(change_streams.NARROW, (10 * number + id, 1, "a", "b"))
            stream.update(change_streams.NARROW, (id, number, "c", "d"))
            contract.run(stream, writer)
        assert bool(lake.passes) == by_files
        assert len(reads) <= by_files
    rows = contract.rows(writer, *NAMES)
    assert [row[:2] for row in rows if row[0] < 10] == [(0, 4), (1, 4), (2, 4)]
    assert len(rows) == 15


@pytest.mark.sampled(3, "files")
@pytest.mark.parametrize(
    ("form", "statement"),
    [
        ("a column of the destination", "ALTER TABLE {table} ADD COLUMN mine string"),
        pytest.param(
            "format 3", "ALTER TABLE {table} SET TBLPROPERTIES ('format-version' = '3')", marks=pytest.mark.long
        ),
        ("another place for data", "ALTER TABLE {table} SET TBLPROPERTIES ('write.data.path' = '{folder}/elsewhere')"),
        pytest.param(
            "another file format",
            "ALTER TABLE {table} SET TBLPROPERTIES ('write.format.default' = 'orc')",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_table_of_another_form_is_left_to_sql(lake, form, statement):
    stream, writer = change_streams.Stream(1), lake.open()
    stream.insert(change_streams.NARROW, (1, 1, "a", "b"))
    contract.run(stream, writer)
    before = len(lake.passes)
    lake.sql(statement.replace("{folder}", str(lake.folder)))
    stream.update(change_streams.NARROW, (1, 2, "a", "b"))
    stream.insert(change_streams.NARROW, (2, 2, "a", "b"))
    contract.run(stream, writer)
    assert contract.rows(writer, "id", "n") == [(1, 2), (2, 2)]
    assert (before, len(lake.passes)) == (1, 1)


@pytest.mark.sampled(3, "files")
def test_a_partitioned_table_is_left_to_sql(lake):
    stream, writer = change_streams.Stream(1), lake.open()
    writer._spark()
    writer._tables.create(PLACE, "id bigint, n int", None)
    table = lake.table
    table.updateSpec().addField("n").commit()
    for n in (1, 2):
        stream.insert(change_streams.NARROW, (7, n, "a", "b"), "u")
        contract.run(stream, writer)
    assert contract.rows(writer, "id", "n") == [(7, 2)]
    assert not lake.passes


@pytest.mark.sampled(3, "files")
def test_many_batches_leave_few_files_and_what_was_deleted_is_in_none(lake):
    stream, writer = change_streams.Stream(1), lake.open()
    for number in range(2 * MERGED_FILES):
        stream.insert(change_streams.NARROW, (number, 1, "a", "b"))
        stream.update(change_streams.NARROW, (number // 2, number, "c", "d"))
        if number % 5 == 4:
            stream.delete(change_streams.NARROW, (number - 1,))
        contract.run(stream, writer)
    found = lake.data_files()
    assert len(found) < MERGED_FILES
    # A file has one delete file at most, which is its alone.
    assert all(len(task.get("delete-files", ())) <= 1 for task in found)
    rows = contract.rows(writer, "id")
    again = lake.open()
    again.claim([contract.TOPIC])
    assert contract.rows(again, "id") == rows
    # One of the three came back with a later update.
    assert len(rows) == 2 * MERGED_FILES - 2


@pytest.mark.long
def test_a_table_that_somebody_compacts_between_two_batches_is_read_again(lake):
    stream, writer = change_streams.Stream(1), lake.open()
    for number in range(5):
        stream.insert(change_streams.NARROW, (number, 1, "a", "b"))
        stream.update(change_streams.NARROW, (0, number, "c", "d"))
        contract.run(stream, writer)
    session = writer._spark()._jsparkSession
    # The threads of a rewrite look for the session of the thread that began it.
    lake.spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session)
    actions = lake.spark._jvm.org.apache.iceberg.spark.actions.SparkActions.get(session)
    actions.rewriteDataFiles(lake.table).option("rewrite-all", "true").execute()
    stream.update(change_streams.NARROW, (3, 9, "c", "d"))
    stream.delete(change_streams.NARROW, (4,))
    contract.run(stream, writer)
    assert contract.rows(writer, "id", "n") == [(0, 4), (1, 1), (2, 1), (3, 9)]


@pytest.mark.sampled(3, "files")
def test_of_two_that_commit_files_at_once_one_is_refused_and_leaves_none_behind(lake):
    stream, writer = change_streams.Stream(1), lake.open()
    stream.insert(change_streams.NARROW, (1, 1, "a", "b"))
    contract.run(stream, writer)
    place = writer._place(contract.TOPIC, ())
    stream.update(change_streams.NARROW, (1, 2, "c", "d"))
    batch = stream.assembler().build(change_streams.arrow(stream.records), writer.ledger(), 1)
    found = writer._found(contract.TOPIC, place)
    writer.apply(batch)
    before = sorted(lake.folder.rglob("public/orders/data/*.parquet"))
    with pytest.raises(CdcError) as caught:
        writer._write(writer._spark(), place, found, batch.tables, batch)
    assert caught.value.code == "spark.ledger_moved"
    assert sorted(lake.folder.rglob("public/orders/data/*.parquet")) == before


@pytest.mark.sampled(3, "files")
def test_a_file_says_of_its_columns_what_iceberg_says(lake):
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    zoned = {"type": "string", "connect.name": "io.debezium.time.ZonedTimestamp"}
    wide = change_streams.table(
        change_streams.ID,
        change_streams.column("m", decimal, "numeric(9,2)"),
        change_streams.column("d", {"type": "int", "connect.name": "io.debezium.time.Date"}, "date"),
        change_streams.column("z", zoned, "timestamp with time zone"),
        change_streams.column("f", "double", "double precision"),
        change_streams.column("b", "boolean", "boolean"),
        change_streams.column("s", "string", "text"),
        change_streams.column("nothing", "string", "text"),
        change_streams.column("tags", {"type": "array", "items": ["null", "string"]}, "text[]"),
    )
    stream, writer = change_streams.Stream(1), lake.open()
    for number in range(3):
        cents = (number * 100 - 150).to_bytes(3, "big", signed=True)
        row = (
            number,
            cents,
            number,
            f"202{number}-01-01T00:00:00Z",
            number / 3,
            True,
            f"{'ü' * 20}{number}",
            None,
            ["a"],
        )
        stream.insert(wide, row)
    contract.run(stream, writer)
    assert len(lake.passes) == 1
    table, iceberg = lake.table, lake.spark._jvm.org.apache.iceberg
    scan = table.newScan().includeColumnStats().planFiles()
    file = scan.iterator().next().file()
    scan.close()
    metrics = iceberg.parquet.ParquetUtil.fileMetrics(
        table.io().newInputFile(file.location()), iceberg.MetricsConfig.forTable(table)
    )
    copy = iceberg.DataFiles.builder(table.spec()).copy(file).withMetrics(metrics).build()
    mine, theirs = (json.loads(iceberg.ContentFileParser.toJson(each, table.spec())) for each in (file, copy))
    for name in ("value-counts", "null-value-counts", "lower-bounds", "upper-bounds"):
        pairs = [
            dict(zip(of.get(name, {"keys": ()})["keys"], of.get(name, {"values": ()})["values"], strict=True))
            for of in (mine, theirs)
        ]
        assert pairs[0] == {id: value for id, value in pairs[1].items() if id in pairs[0]}, name
    assert mine["split-offsets"] == theirs["split-offsets"]
