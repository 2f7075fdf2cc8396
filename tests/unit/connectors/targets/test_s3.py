"""The keys of the sink into files, where a file lies, and what is in it."""

from __future__ import annotations

import csv
import gzip
import io
import json
from datetime import UTC, datetime
from decimal import Decimal

import fastavro
import pytest
from cdcworker.connectors.api.record_target import TargetRecord
from cdcworker.connectors.targets.s3.config import CONFIG_DEF, format_of, place_of, template_of
from cdcworker.connectors.targets.s3.formats import format_named
from cdcworker.connectors.targets.s3.layout import Folders, name_of
from cdcworker.connectors.transforms.data import DATE, DECIMAL, ConnectSchema, struct, timestamp
from cdcworker.schemas.errors import CdcError

S3 = {"topics": "t", "warehouse.path": "s3://bucket/x", "warehouse.s3.access.key": "a", "warehouse.s3.secret.key": "s"}
ROW = struct(
    ("id", ConnectSchema("int32")),
    ("text", ConnectSchema("string", optional=True)),
    ("price", ConnectSchema("bytes", name=DECIMAL, parameters={"scale": "2"})),
    ("at", timestamp()),
    ("day", ConnectSchema("int32", name=DATE)),
    ("tags", ConnectSchema("array", value_schema=ConnectSchema("string"))),
    name="row",
)
VALUE = {"id": 1, "text": 'ä,"\n', "price": b"\x04\xd2", "at": 1_700_000_000_123, "day": 19_000, "tags": ["x", "y"]}


def record(value=VALUE, schema=ROW, **more):
    return TargetRecord(**{"id": "id-0-7", "topic": "a.b", "partition": 0, "offset": 7, "timestamp_ms": 1_700_000_000_123,
                           "value_schema": schema, "value": value, **more})  # fmt: skip


def decimal_of_scale(scale):
    return struct(("d", ConnectSchema("bytes", name=DECIMAL, parameters={"scale": str(scale)})), name="row")


def wrong(config):
    return {value.name for value in CONFIG_DEF.validate({**S3, **config}) if value.errors}


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"warehouse.path": ""}, "warehouse.path"),
        ({"warehouse.path": "ftp://x/y"}, "warehouse.path"),
        ({"warehouse.s3.secret.key": ""}, "warehouse.s3.secret.key"),
        ({"file.folder.template": "../x"}, "file.folder.template"),
        ({"file.folder.template": "a//b"}, "file.folder.template"),
        ({"file.folder.template": "_x/${topic}"}, "file.folder.template"),
        ({"file.folder.template": "${value}"}, "file.folder.template"),
        ({"file.format": "orc"}, "file.format"),
        ({"file.format": "csv", "file.content": "event"}, "file.content"),
        ({"format.class": "io.confluent.connect.s3.format.bytearray.ByteArrayFormat"}, "format.class"),
        ({"partitioner.class": "com.example.Own"}, "partitioner.class"),
        ({"partitioner.class": "io.confluent.connect.storage.partitioner.FieldPartitioner"}, "partition.field.name"),
        ({"path.format": "'year'=YYYY/$x"}, "path.format"),
    ],
)
def test_what_is_refused_by_name(config, key):
    assert wrong(config) == {key}


def test_a_config_of_confluents_sink_is_understood():
    config = {
        "topics": "t", "s3.bucket.name": "bucket", "s3.region": "eu-central-1", "store.url": "http://127.0.0.1:9", "flush.size": "3",
        "aws.access.key.id": "a", "aws.secret.access.key": "s", "storage.class": "io.confluent.connect.s3.storage.S3Storage",
        "format.class": "io.confluent.connect.s3.format.parquet.ParquetFormat", "s3.compression.type": "gzip", "rotate.interval.ms": "60000",
        "partitioner.class": "io.confluent.connect.storage.partitioner.TimeBasedPartitioner",
        "path.format": "'year'=YYYY/'month'=MM", "locale": "en-US", "timezone": "UTC", "timestamp.extractor": "Record",
    }  # fmt: skip
    assert [value.name for value in CONFIG_DEF.validate(config) if value.errors] == []
    parsed = CONFIG_DEF.parse(config)
    assert place_of(parsed)["warehouse.path"] == "s3://bucket/topics"
    assert (parsed["file.max.records"], parsed["warehouse.s3.region"], format_of(parsed)) == (
        3,
        "eu-central-1",
        "parquet",
    )
    assert Folders(template_of(parsed)).of(record()) == "a.b/year=2023/month=11"


@pytest.mark.parametrize(
    ("template", "folder"),
    [
        ("${topic}/partition=${partition}", "a.b/partition=0"),
        ("x/${value.text}", "x/%C3%A4%2C%22%0A"),
        ("%Y-%m-%d/%H", "2023-11-14/22"),
    ],
)
def test_folders(template, folder):
    assert Folders(template).of(record()) == folder


@pytest.mark.parametrize("value", ["_cdcworker", "_a", ".a", ".", "..", ""])
def test_readers_pass_over_no_folder_of_a_value(value):
    for template in ("${value.text}/x", "x/${value.text}", "x/${value.text}/y"):
        folder = Folders(template).of(record({**VALUE, "text": value}))
        assert not any(part.startswith(("_", ".")) for part in folder.split("/"))
    assert Folders("a=${value.text}").of(record({**VALUE, "text": "_a"})) == "a=_a"


@pytest.mark.parametrize("value", [".", "..", "../..", "a/b", ""])
def test_no_value_is_a_step_to_another_folder(value):
    folder = Folders("x/${value.text}").of(record({**VALUE, "text": value}))
    assert folder.count("/") == 1
    assert folder.split("/")[1].strip(".")


def test_a_name_tells_the_first_record_and_the_run():
    assert name_of(record(), 0, ".json") == "a.b+0+0000000007.json"
    assert name_of(record(), 2, ".json") == "a.b+0+0000000007+2.json"


def test_the_same_records_make_the_same_bytes():
    for name in ("json", "csv", "avro", "parquet"):
        made = format_named(name, events=False, compression="gzip")
        assert made.content([record(), record()]) == made.content([record(), record()])


def test_lines_csv_avro_and_parquet_hold_the_values():
    lines = format_named("json", events=False, compression="gzip").content([record()])
    assert json.loads(gzip.decompress(lines))["text"] == VALUE["text"]
    event = json.loads(format_named("json", events=True, compression="none").content([record()]))
    assert (event["id"], event["value"]["id"]) == ("id-0-7", 1)
    table = list(
        csv.reader(io.StringIO(format_named("csv", events=False, compression="none").content([record()]).decode()))
    )
    assert table[0] == [name for name, _ in ROW.fields]
    assert table[1][:3] == ["1", VALUE["text"], "12.34"]
    (avro,) = fastavro.reader(io.BytesIO(format_named("avro", events=False, compression="none").content([record()])))
    assert (avro["price"], avro["tags"]) == (Decimal("12.34"), ["x", "y"])
    parquet = pytest.importorskip("pyarrow.parquet")
    made = format_named("parquet", events=False, compression="none").content([record()])
    (row,) = parquet.read_table(io.BytesIO(made)).to_pylist()
    assert (row["price"], row["tags"], row["day"].isoformat()) == (Decimal("12.34"), ["x", "y"], "2022-01-08")
    assert row["at"].astimezone(UTC) == datetime.fromtimestamp(1_700_000_000.123, UTC)


@pytest.mark.parametrize(("name", "value", "schema"), [
    ("csv", "text", None), ("avro", {"a": 1}, None), ("parquet", {"a": 1}, None), ("avro", {**VALUE, "id": "x"}, ROW),
    ("parquet", {**VALUE, "id": "x"}, ROW), ("json", {"a": "\ud800"}, None),
    ("parquet", {"d": b"\x01"}, decimal_of_scale(40)), ("avro", {"d": b"\x01"}, decimal_of_scale(-2)),
])  # fmt: skip
def test_a_record_that_a_format_cannot_hold_is_refused_without_its_value(name, value, schema):
    made = format_named(name, events=False, compression="none")
    one = record(value, schema)

    def written():
        made.shape(one)
        made.content([one])

    with pytest.raises(CdcError) as error:
        written()
    assert error.value.code == "sink.record_refused"
    assert "x" not in error.value.where.values()


def test_csv_tells_null_from_a_text_without_characters_and_ends_no_line_in_a_value():
    columns = struct(*((name, ConnectSchema("string", optional=True)) for name in "ab"), name="row")
    made = format_named("csv", events=False, compression="none")
    values = [(None, ""), ("x\ry", "\r"), ('say "x"', "a,b"), ("=1", "\0")]
    content = made.content([record({"a": a, "b": b}, columns) for a, b in values])
    assert content.split(b"\n")[1] == b',""'
    with io.StringIO(content.decode(), newline="") as lines:
        assert list(csv.reader(lines))[1:] == [[a or "", b] for a, b in values]
    one = struct(("a", ConnectSchema("string", optional=True)), name="row")
    assert made.content([record({"a": None}, one)]) == b'a\n""\n'
