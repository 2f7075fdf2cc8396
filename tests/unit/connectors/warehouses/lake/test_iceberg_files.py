"""Parquet files of Iceberg tables: what they say of themselves, and which of their rows are there."""

from __future__ import annotations

import datetime as dt
import random
import struct
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from cdcworker.connectors.api.table_batch import KEY, POSITION
from cdcworker.connectors.warehouses.lake import iceberg_files, iceberg_parquet
from cdcworker.connectors.warehouses.lake.file_faults import UnreadableFile, is_broken
from cdcworker.connectors.warehouses.lake.iceberg_files import (
    FilesCache,
    LiveFile,
    TableFiles,
    index_files,
    read_files,
    rows_under,
)
from cdcworker.connectors.warehouses.lake.iceberg_parquet import (
    UnfitFile,
    check_file,
    columns_of,
    read_deletes,
    read_rows,
    write_deletes,
    write_rows,
)
from cdcworker.connectors.warehouses.lake.table_places import local_path
from cdcworker.connectors.warehouses.lake.tables import LakeName
from cdcworker.connectors.warehouses.storage.local_disk import LocalDisk
from cdcworker.connectors.warehouses.table_files.key_index import ENTRY_BYTES, IndexMemory
from cdcworker.connectors.warehouses.table_files.live_files import WantedRows
from cdcworker.schemas.errors import CdcError

TYPES = (
    *("boolean", "int", "long", "float", "double", "string", "binary", "date", "timestamp", "timestamptz"),
    *(
        "decimal(9, 2)",
        "decimal(38,10)",
        {"type": "list", "element-id": 90, "element": "long", "element-required": False},
    ),
)
WIDE = {"fields": [{"id": at + 1, "name": f"c.{at}", "required": False, "type": kind} for at, kind in enumerate(TYPES)]}
KEYED = {
    "fields": [
        {"id": 1, "name": KEY, "required": False, "type": "binary"},
        {"id": 2, "name": POSITION, "required": False, "type": "binary"},
        {"id": 3, "name": "n", "required": True, "type": "long"},
        {"id": 4, "name": "s", "required": False, "type": "string"},
    ]
}
DISK = LocalDisk("/")
DAY, UTC = dt.date(2024, 2, 29), dt.UTC


def table_of(columns, *rows):
    values = list(zip(*rows, strict=True))
    return pa.table({c.name: pa.array(list(v), c.kind) for c, v in zip(columns, values, strict=True)})


def bounds(entry, id):
    def of(name):
        found = dict(zip(entry[name]["keys"], entry[name]["values"], strict=True)).get(id)
        return None if found is None else bytes.fromhex(found)

    return of("lower-bounds"), of("upper-bounds")


def one_column(tmp_path, kind, values):
    columns = columns_of({"fields": [{"id": 7, "name": "c", "required": False, "type": kind}]})
    table = pa.table({"c": pa.array(values, columns[0].kind)})
    return write_rows(DISK, str(tmp_path / "a.parquet"), table, columns, "zstd")


def test_every_type_that_the_sink_makes_comes_back(tmp_path):
    columns = columns_of(WIDE)
    row = (True, 1, 2**40, 0.5, 0.1, "ü", b"\0\xff", DAY, dt.datetime(1, 1, 1), dt.datetime(9999, 1, 1, tzinfo=UTC))
    row = (*row, Decimal("-1234567.89"), Decimal("1234567890123456789012345678.0000000001"), [1, None])
    rows = table_of(columns, row, [None] * len(row))
    entry = write_rows(DISK, str(tmp_path / "a.parquet"), rows, columns, "zstd")
    assert entry["record-count"] == 2
    assert pa.concat_tables(read_rows(DISK, str(tmp_path / "a.parquet"), columns)).equals(rows)


@pytest.mark.parametrize("kind", ["uuid", "fixed[4]", "time", {"type": "struct", "fields": []}, "timestamp_ns"])
def test_a_type_that_the_sink_never_makes_is_left_to_iceberg(kind):
    assert columns_of({"fields": [{"id": 1, "name": "c", "required": False, "type": kind}]}) is None


def test_columns_are_those_with_the_same_ids_whatever_their_names(tmp_path):
    before, path = columns_of(KEYED), str(tmp_path / "a.parquet")
    write_rows(DISK, path, table_of(before, (b"k", b"p", 5, "x")), before, "snappy")
    fields = [{"id": 3, "name": "s", "required": False, "type": "long"}]
    fields += [{"id": 4, "name": "renamed", "required": False, "type": "string"}]
    fields += [{"id": 9, "name": "new", "required": False, "type": "double"}]
    assert [row for found in read_rows(DISK, path, columns_of({"fields": fields})) for row in found.to_pylist()] == [
        {"s": 5, "renamed": "x", "new": None}
    ]


def test_a_required_column_takes_no_null(tmp_path):
    columns = columns_of(KEYED)
    with pytest.raises(CdcError) as caught:
        write_rows(DISK, str(tmp_path / "a.parquet"), table_of(columns, (b"k", b"p", None, "x")), columns, "zstd")
    assert (caught.value.code, caught.value.where) == ("spark.target_value", {"column": "n"})


def test_a_file_without_field_ids_is_not_read(tmp_path):
    path = str(tmp_path / "a.parquet")
    pa.parquet.write_table(pa.table({"n": [1]}), path)
    with pytest.raises(UnfitFile):
        list(read_rows(DISK, path, columns_of(KEYED)))


@pytest.mark.parametrize(
    ("kind", "values", "wanted"),
    [
        ("int", [3, None, -2], (struct.pack("<i", -2), struct.pack("<i", 3))),
        ("boolean", [True, False], (b"\0", b"\1")),
        ("date", [DAY], (struct.pack("<i", 19_782),) * 2),
        ("timestamptz", [dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)], (struct.pack("<q", 1_000_000),) * 2),
        ("decimal(9, 2)", [Decimal("-1.28"), Decimal("1.28")], (b"\x80", b"\x00\x80")),
        ("double", [0.0], (struct.pack("<d", -0.0), struct.pack("<d", 0.0))),
        ("double", [1.0, float("nan")], (None, None)),
        ("string", ["ü" * 20, "b"], (b"b", ("ü" * 15 + "ý").encode())),
        ("string", ["\U0010ffff" * 17], (("\U0010ffff" * 16).encode(), None)),
        ("string", ["a" * 15 + "\ud7ff" + "z"], (("a" * 15 + "\ud7ff").encode(), ("a" * 15 + "\ue000").encode())),
        ("binary", [b"\1" * 20, b""], (b"", b"\1" * 15 + b"\2")),
        ("binary", [b"\xff" * 20], (b"\xff" * 16, None)),
        ("long", [None], (None, None)),
    ],
)
def test_bounds_hold_every_value(tmp_path, kind, values, wanted):
    assert bounds(one_column(tmp_path, kind, values), 7) == wanted


def test_position_deletes_name_their_data_file(tmp_path):
    entry = write_deletes(DISK, str(tmp_path / "d.parquet"), "file:/lake/a.parquet", np.array([1, 5, 9]))
    assert (entry["record-count"], entry["referenced-data-file"]) == (3, "file:/lake/a.parquet")
    assert bounds(entry, iceberg_parquet.DELETED_PATH) == (b"file:/lake/a.parquet",) * 2
    assert bounds(entry, iceberg_parquet.DELETED_ROW) == (struct.pack("<q", 1), struct.pack("<q", 9))
    found = read_deletes(DISK, str(tmp_path / "d.parquet"))
    assert found.to_pydict() == {"file_path": ["file:/lake/a.parquet"] * 3, "pos": [1, 5, 9]}


@pytest.mark.parametrize("how", ["missing", "text", "cut"])
def test_a_file_that_is_not_what_it_was_is_a_broken_one(tmp_path, how):
    columns, path = columns_of(KEYED), tmp_path / "a.parquet"
    entry = write_rows(DISK, str(path), table_of(columns, (b"k", b"p", 5, "x")), columns, "zstd")
    check_file(DISK, str(path), entry["file-size-in-bytes"])
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(b"x" if how == "text" else path.read_bytes()[:-20])
    for look in (
        lambda: check_file(DISK, str(path), entry["file-size-in-bytes"]),
        lambda: list(read_rows(DISK, str(path), columns)),
    ):
        with pytest.raises(UnreadableFile) as caught:
            look()
        assert is_broken(caught.value)


# -- a table's files ----------------------------------------------------------------------------------------------------


class World:
    """Files of one table in a folder, and the rows that they have."""

    def __init__(self, folder):
        self.folder, self.columns, self.tasks, self.rows = folder, columns_of(KEYED), [], {}

    @property
    def schema(self):
        return pa.schema([(column.name, column.kind) for column in self.columns])

    def add(self, keys, deleted=()):
        path = str(self.folder / f"{len(self.tasks)}.parquet")
        rows = [(key, len(self.tasks).to_bytes(16, "big"), at, f"{key} {at}") for at, key in enumerate(keys)]
        entry = {**write_rows(DISK, path, table_of(self.columns, *rows), self.columns, "zstd"), "file-path": path}
        task = {"data-file": entry, "delete-files": []}
        self.tasks.append(task)
        if deleted:
            task["delete-files"] = [self.deletes(len(self.tasks) - 1, deleted)]
        self.rows |= {key: row for at, (key, row) in enumerate(zip(keys, rows, strict=True)) if at not in deleted}
        return self

    def deletes(self, number, deleted):
        name = str(self.folder / f"{number}-deletes.parquet")
        path = self.tasks[number]["data-file"]["file-path"]
        return {**write_deletes(DISK, name, path, np.array(sorted(deleted))), "file-path": name}

    def files(self, memory=None, files=None):
        files = files or TableFiles(DISK, "u", 1, memory or IndexMemory())
        read_files(self.tasks, files, str)
        index_files(files, self.columns[:2])
        return files


def tuples(found):
    return sorted(tuple(row.values()) for row in found.rows.to_pylist())


@pytest.mark.parametrize("rows_max", [1000, 90, 0], ids=["index", "part", "scan"])
def test_rows_are_found_by_their_keys_with_or_without_an_index(tmp_path, monkeypatch, rows_max):
    monkeypatch.setattr(iceberg_parquet, "ROWS_PER_GROUP", 7)
    chance, world = random.Random(1), World(tmp_path)
    names = [f"{number}".encode() for number in range(200)]
    for file in range(5):
        mine = names[file * 40 : file * 40 + 40]
        world.add(mine, chance.sample(range(40), 9) if file % 2 else ())
    files = world.files(IndexMemory(rows_max * ENTRY_BYTES))
    assert len(files.index.missing()) == {1000: 0, 90: 3, 0: 5}[rows_max]
    for _ in range(20):
        asked = [*chance.sample(names, 30), b"nowhere"]
        wanted = sorted(world.rows[key] for key in asked if key in world.rows)
        keys = pa.array(asked, pa.binary())
        whole = rows_under(files, world.columns, world.schema, WantedRows(keys, ("n", "s")))
        assert tuples(whole) == wanted
        few = rows_under(files, world.columns, world.schema, WantedRows(keys, ()))
        assert [row[:2] for row in tuples(few)] == [row[:2] for row in wanted]
        assert few.rows.schema == whole.rows.schema == world.schema
        # A place leads back to its row.
        by_place = {int(p): row["n"] for p, row in zip(whole.places, whole.rows.to_pylist(), strict=True)}
        assert all(place & (2**32 - 1) == n for place, n in by_place.items())


@pytest.mark.parametrize(
    "change",
    [
        {"data-file": {"file-format": "orc"}},
        {"data-file": {"file-format": "PARQUET", "content": "EQUALITY_DELETES"}},
    ],
)
def test_files_of_another_kind_are_left_to_iceberg(tmp_path, change):
    world = World(tmp_path).add([b"a"])
    world.tasks[0]["data-file"] |= change["data-file"]
    with pytest.raises(UnfitFile):
        world.files()


def test_a_file_without_field_ids_is_left_to_iceberg_also_where_the_index_has_no_room_for_it(tmp_path):
    world = World(tmp_path).add([b"a"])
    pa.parquet.write_table(pa.table({KEY: [b"a"]}), world.tasks[0]["data-file"]["file-path"])
    with pytest.raises(UnfitFile):
        world.files(IndexMemory(0))


def test_a_file_with_a_key_of_null_is_in_no_index_and_rows_are_found_all_the_same(tmp_path):
    world = World(tmp_path).add([b"a"]).add([b"b", None])
    files = world.files()
    assert files.index.find(pa.array([b"a", b"b"], pa.binary())).files == {0}
    found = rows_under(files, world.columns, world.schema, WantedRows(pa.array([b"a", b"b"], pa.binary()), ("n",)))
    assert sorted(row[0] for row in tuples(found)) == [b"a", b"b"]


def test_a_snapshot_of_somebody_else_costs_no_more_than_what_is_other_in_it(tmp_path, monkeypatch):
    world = World(tmp_path).add([b"a", b"b"]).add([b"c", b"d"], {0}).add([b"e"])
    files, reads, read = world.files(), [], iceberg_files.read_rows
    monkeypatch.setattr(
        iceberg_files, "read_rows", lambda disk, path, columns: reads.append(path) or read(disk, path, columns)
    )
    world.tasks[0]["delete-files"] = [world.deletes(0, {1})]
    world.add([b"f"])
    del world.tasks[2]
    assert world.files(files=files) is files
    assert reads == [str(tmp_path / "3.parquet")]
    asked = pa.array([b"%c" % letter for letter in b"abcdef"], pa.binary())
    found = rows_under(files, world.columns, world.schema, WantedRows(asked, ()))
    assert sorted(row[0] for row in tuples(found)) == [b"a", b"d", b"f"]


def test_rows_that_a_rollback_brings_back_are_found(tmp_path):
    world = World(tmp_path).add([b"a", b"b"], {0, 1})
    files = world.files()
    world.tasks[0]["delete-files"] = []
    world.files(files=files)
    found = rows_under(files, world.columns, world.schema, WantedRows(pa.array([b"a", b"b"], pa.binary()), ()))
    assert sorted(row[0] for row in tuples(found)) == [b"a", b"b"]


def test_of_another_table_nothing_is_known(tmp_path):
    cache, place = FilesCache(), LakeName("public", "a")
    cache.put(place, TableFiles(DISK, "u", 1, cache.memory))
    assert cache.get(place, "u") is not None
    assert cache.get(place, "other") is None
    cache.drop(place)
    assert cache.get(place, "u") is None


def live(size, rows=100, gone=0):
    return LiveFile({"file-size-in-bytes": size, "record-count": rows}, ""), np.arange(rows) < gone


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        ([live(1000)] * 7, 0),
        ([live(1000)] * 8, 8),
        # Those of another size stay.
        ([*[live(1000)] * 8, live(50_000_000)], 8),
        ([live(50_000_000), live(1000, gone=31), live(1000, gone=30)], 1),
        ([live(1000, gone=100)], 1),
        # No more at once than fits into memory.
        ([live(iceberg_files.MERGED_BYTES_MAX // 4 + 1)] * 8, 3),
        ([live(1000, rows=iceberg_files.MERGED_ROWS_MAX // 4)] * 8, 4),
        ([live(iceberg_files.MERGED_BYTES_MAX + 1, gone=90)], 0),
    ],
)
def test_small_files_and_such_with_many_deleted_rows_are_merged(sizes, wanted):
    files = TableFiles(DISK, "u", 1, IndexMemory())
    for file, gone in sizes:
        files.add(file, gone)
    assert len(files.mergeable()) == wanted


def test_rows_of_merged_files_are_those_that_were_there(tmp_path):
    world = World(tmp_path).add([b"a", b"b", b"c"], {1}).add([b"d"]).add([b"e"])
    files = world.files()
    found = files.live_rows([0, 1], world.columns)
    assert found[KEY].to_pylist() == [b"a", b"c", b"d"]
    assert found["s"].to_pylist() == [world.rows[key][3] for key in (b"a", b"c", b"d")]


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/lake/t", "/lake/t"),
        ("file:/lake/t", "/lake/t"),
        ("file:///lake/t", "/lake/t"),
        ("file://host/lake", None),
        ("s3://bucket/t", None),
        ("hdfs:/lake", None),
    ],
)
def test_only_what_is_on_this_machine_has_a_path(location, path):
    assert local_path(location) == path
