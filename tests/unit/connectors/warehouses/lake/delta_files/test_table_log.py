"""The log of a Delta table, and which tables are read and written by their files."""

from __future__ import annotations

import json
import shutil

import pyarrow as pa
import pytest
from cdcworker.connectors.warehouses.lake.delta_files.table_features import data_path, layout_of
from cdcworker.connectors.warehouses.lake.delta_files.table_log import TableLog, UnreadableLog
from cdcworker.connectors.warehouses.storage.local_disk import LocalDisk
from cdcworker.schemas.errors import CdcError
from pyarrow import parquet

PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
FIELDS = [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]


def metadata(fields=FIELDS, id="a", **configuration):
    text = json.dumps({"type": "struct", "fields": fields})
    return {"id": id, "schemaString": text, "partitionColumns": [], "configuration": configuration}


def add(path, **more):
    return {"add": {"path": path, "partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": True, **more}}


def remove(path, **more):
    return {"remove": {"path": path, "dataChange": True, **more}}


def vector(text):
    return {"deletionVector": {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": 4, "cardinality": 1}}


@pytest.fixture
def log(tmp_path):
    (tmp_path / "_delta_log").mkdir()
    return TableLog(LocalDisk(tmp_path))


def write(log, version, *actions):
    log.files.replace(log.path(version), "\n".join(map(json.dumps, actions)).encode())


def begun(log, *actions, **more):
    write(log, 0, {"protocol": PROTOCOL}, {"metaData": metadata(**more)}, *actions)
    return log.snapshot()


def test_commits_of_others_are_seen(log):
    begun(log, add("a"), add("b"))
    write(log, 1, add("c"), remove("a"))
    write(log, 2, {"txn": {"appId": "x", "version": 7}})
    found = log.snapshot()
    assert (found.version, {path for path, _ in found.files}, found.transactions) == (2, {"b", "c"}, {"x": 7})


def test_a_file_goes_and_comes_with_its_vector_whatever_stands_first(log):
    begun(log, add("a"))
    write(log, 1, add("a", **vector("one")), remove("a"))
    write(log, 2, add("a", **vector("two")), remove("a", **vector("one")))
    assert list(log.snapshot().files) == [("a", "itwo")]


def test_columns_may_change_without_the_rows(log):
    begun(log, add("a"))
    write(log, 1, {"metaData": metadata(note="more")})
    assert log.snapshot().changed == 0
    write(log, 2, {"txn": {"appId": "x", "version": 7}})
    assert log.snapshot().changed == 2


def test_of_two_commits_one_is_made(log):
    before = begun(log)
    other = TableLog(log.files)
    assert other.commit(other.snapshot(), [add("a")]).version == 1
    assert log.commit(before, [add("b")]) is None
    assert list(log.snapshot().files) == [("a", "")]
    assert sorted(log.files.names("_delta_log", "")) == [f"{number:020d}.json" for number in (0, 1)]


def test_a_table_that_came_in_the_place_of_another_is_read_anew(log):
    begun(log, add("a"), id="one")
    write(log, 1, add("b"))
    assert log.snapshot().version == 1
    shutil.rmtree(log.files.source("") / "_delta_log")
    assert log.snapshot() is None
    (log.files.source("") / "_delta_log").mkdir()
    assert begun(log, add("c"), id="other").metadata["id"] == "other"
    assert list(log.snapshot().files) == [("c", "")]


def checkpoint(log, version, name, files):
    rows = [
        {"protocol": PROTOCOL},
        {"metaData": {**metadata(), "configuration": [("k", "v")]}},
        {"txn": {"appId": "x", "version": 3, "lastUpdated": None}},
        *({"add": {"path": path, "size": 1, "stats": '{"numRecords":1}', "deletionVector": None}} for path in files),
    ]
    kinds = {
        "protocol": pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())]),
        "metaData": pa.struct(
            [("id", pa.string()), ("schemaString", pa.string()), ("configuration", pa.map_(pa.string(), pa.string()))]
        ),
        "txn": pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())]),
        "add": pa.struct(
            [("path", pa.string()), ("size", pa.int64()), ("stats", pa.string()), ("deletionVector", pa.null())]
        ),
    }
    table = pa.table({name: pa.array([row.get(name) for row in rows], kind) for name, kind in kinds.items()})
    parquet.write_table(table, log.files.source("") / "_delta_log" / name.format(version))


def test_a_log_begins_with_its_checkpoint(log):
    checkpoint(log, 10, "{:020d}.checkpoint.parquet", ["a", "b"])
    write(log, 10, add("b"))
    write(log, 11, remove("a"))
    found = log.snapshot()
    assert (found.version, list(found.files), found.transactions) == (11, [("b", "")], {"x": 3})
    assert found.metadata["configuration"] == {"k": "v"}


@pytest.mark.parametrize(
    "name", ["{:020d}.checkpoint.0000000001.0000000002.parquet", "{:020d}.checkpoint.8f-1.parquet"]
)
def test_a_checkpoint_of_another_form_is_left_to_delta(log, name):
    checkpoint(log, 10, name, ["a"])
    with pytest.raises(UnreadableLog):
        log.snapshot()


def test_a_log_whose_beginning_is_gone_is_left_to_delta(log):
    write(log, 4, add("a"))
    with pytest.raises(UnreadableLog):
        log.snapshot()


def test_no_log_is_no_table(tmp_path, log):
    assert log.snapshot() is None
    assert TableLog(LocalDisk(tmp_path / "none")).snapshot() is None


KNOWN = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors", "appendOnly"]}


@pytest.mark.parametrize(
    ("protocol", "more"),
    [
        ({**PROTOCOL, "minWriterVersion": 6}, {}),
        ({"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": ["rowTracking"], "readerFeatures": []}, {}),
        (PROTOCOL, {"delta.appendOnly": "true"}),
        (PROTOCOL, {"delta.enableChangeDataFeed": "true"}),
        (PROTOCOL, {"delta.constraints.positive": "id > 0"}),
        (PROTOCOL, {"delta.columnMapping.mode": "id"}),
        (PROTOCOL, {"fields": [{**FIELDS[0], "nullable": False}]}),
        (PROTOCOL, {"fields": [{**FIELDS[0], "metadata": {"delta.generationExpression": "1"}}]}),
        (PROTOCOL, {"fields": [{**FIELDS[0], "metadata": {"delta.identity.start": 1}}]}),
        (PROTOCOL, {"fields": [{**FIELDS[0], "type": {"type": "struct", "fields": []}}]}),
    ],
    ids=str,
)
def test_a_table_with_something_that_delta_alone_knows_is_left_to_it(log, protocol, more):
    write(log, 0, {"protocol": protocol}, {"metaData": metadata(**more)})
    assert layout_of(log.snapshot()) is None


def test_a_partitioned_table_is_left_to_delta(log):
    write(log, 0, {"protocol": PROTOCOL}, {"metaData": {**metadata(), "partitionColumns": ["id"]}})
    assert layout_of(log.snapshot()) is None


@pytest.mark.parametrize("on", [True, False])
def test_vectors_are_written_where_the_table_has_them(log, on):
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **KNOWN}
    settings = {"delta.enableDeletionVectors": str(on).lower()}
    write(log, 0, {"protocol": protocol}, {"metaData": metadata(**settings)})
    found = layout_of(log.snapshot())
    assert found.vectors is on
    assert [(column.name, column.physical, column.type) for column in found.columns] == [("id", "id", "bigint")]


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../other/a.parquet", "file:///etc/passwd", "%2e%2e/a", "a/%2E%2E/b", ""]
)
def test_a_file_outside_the_table_is_not_read(path):
    with pytest.raises(ValueError, match="another place"):
        data_path(path)


def test_names_of_files_are_written_as_in_uris():
    assert data_path("ab/part%20one.parquet") == "ab/part one.parquet"


def test_a_version_of_this_process_that_came_late_is_told_from_one_of_others(log, monkeypatch):
    before = begun(log)
    write(log, 1, add("late"))
    assert log.commit(before, [add("a")]) is None
    monkeypatch.setattr(log.files, "is_late", lambda path: path == log.path(1))
    with pytest.raises(CdcError) as caught:
        log.commit(before, [add("a")])
    assert (caught.value.code, caught.value.kind) == ("spark.target_unreachable", "transient")
    assert list(log.snapshot().files) == [("late", "")]
