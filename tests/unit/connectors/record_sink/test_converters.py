"""Keys and values as converters read them, and ExtractNewRecordState on what was read."""

from __future__ import annotations

import json

import pytest
from cdcworker.connectors.formats.avro import AvroReader
from cdcworker.connectors.formats.connect_json import JsonReader
from cdcworker.connectors.record_sink.json_values import JsonValues
from cdcworker.connectors.record_sink.unwrap import Unwrap, options_of
from cdcworker.connectors.transforms.data import ConnectRecord, DataError
from cdcworker.schemas.errors import CdcError

from tests.change_streams import Stream, column, table

ORDERS = table(
    column("id", "long", "bigint", False),
    column("größe in cm", "string", "text"),
    column("data", "bytes", "bytea"),
    column("tags", {"type": "array", "items": ["null", "string"]}, "text[]"),
)
ROW = {"id": 7, "größe in cm": "groß\n", "data": b"\0\xff", "tags": ["a", None]}


@pytest.fixture
def stream():
    made = Stream(1)
    made.insert(ORDERS, tuple(ROW.values()))
    made.delete(ORDERS, (7,))
    return made


@pytest.fixture
def avro(stream):
    class Finds:
        def stored(self, id):
            return stream.schemas.log.by_id(id)

    return AvroReader(Finds())


def test_names_that_avro_does_not_allow_are_as_the_source_has_them(stream, avro):
    schema, value = avro.read(stream.records[0]["value"])
    assert value["after"] == ROW
    assert [name for name, _ in schema.by_name["after"].fields] == list(ROW)
    assert json.loads(JsonValues(numeric=True).text(schema, value))["after"] == {**ROW, "data": "AP8="}


def test_bytes_that_are_no_frame_and_values_that_do_not_fit_are_data_errors(stream, avro):
    framed = stream.records[0]["value"]
    for data, code in (
        (b"x", "schema.frame"),
        (framed[:-1], "schema.undecodable"),
        (framed + b"x", "schema.undecodable"),
    ):
        with pytest.raises(CdcError) as caught:
            avro.read(data)
        assert (caught.value.code, caught.value.kind) == (code, "data")


def test_json_with_schemas_gives_values_of_the_same_form():
    fields = [
        {"field": "a", "type": "bytes", "optional": True},
        {"field": "b", "type": "float", "optional": False},
        {"field": "c", "type": "array", "items": {"type": "int64", "optional": False}, "optional": True},
    ]
    payload = {"a": "AP8=", "b": 1, "c": [1, 2]}
    schema = {"type": "struct", "name": "x", "fields": fields, "optional": False}
    reader = JsonReader(schemas=True)
    found = reader.read(json.dumps({"schema": schema, "payload": payload}).encode())
    assert found.value == {"a": b"\0\xff", "b": 1.0, "c": [1, 2]}
    assert JsonValues(numeric=True).text(found.schema, found.value) == '{"a":"AP8=","b":1.0,"c":[1,2]}'
    assert reader.read(json.dumps({"schema": schema, "payload": payload}).encode()).schema is found.schema


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[1]", b'{"payload":1}', b'{"schema":{"type":"what"},"payload":1}', b'{"schema":{},"payload":1}',
             b'{"schema":{"type":"bytes","optional":false},"payload":"no base64!"}', b"\xff"]
)  # fmt: skip
def test_json_that_is_not_connects_is_a_data_error(text):
    with pytest.raises(CdcError) as caught:
        JsonReader(schemas=True).read(text)
    assert (caught.value.code, caught.value.kind) == ("sink.record_unreadable", "data")


def test_json_without_schemas_is_any_value():
    reader = JsonReader(schemas=False)
    assert reader.read(b'{"a":[1,2.5,null]}') == (None, {"a": [1, 2.5, None]})
    assert reader.read(None) == (None, None)


# ExtractNewRecordState


def unwrapped(stream, avro, **config):
    keys = {f"transforms.u.{name.replace('__', '.')}": value for name, value in config.items()}
    transform = Unwrap(options_of(keys, "transforms.u."))
    out = []
    for record in stream.records:
        read = avro.read(record["value"])
        out.append(transform.apply(ConnectRecord("t", None, None, read.schema, read.value)))
    return [made if made is None else made.value for made in out]


@pytest.mark.parametrize(
    ("mode", "delete", "tombstone"),
    [
        ("drop", None, None),
        ("tombstone", None, "null"),
        ("delete-to-tombstone", "null", None),
        ("rewrite", "row", None),
        ("rewrite-with-tombstone", "row", "null"),
    ],
)
def test_what_becomes_of_a_deletion(stream, avro, mode, delete, tombstone):
    records = [avro.read(record["value"]) for record in stream.records]
    assert [read.value is None for read in records] == [False, False, True]
    transform = Unwrap(options_of({"transforms.u.delete.tombstone.handling.mode": mode}, "transforms.u."))
    made = [transform.apply(ConnectRecord("t", None, None, read.schema, read.value)) for read in records]
    marked = {"__deleted": "false"} if mode.startswith("rewrite") else {}
    assert made[0] is not None
    assert made[0].value == {**ROW, **marked}
    told = ["row" if one and one.value else "null" if one else None for one in made[1:]]
    assert told == [delete, tombstone]
    if delete == "row":
        assert made[1].value == {"id": 7, "größe in cm": None, "data": None, "tags": None, "__deleted": "true"}
        text = JsonValues(numeric=True).text(made[1].value_schema, made[1].value)
        assert json.loads(text)["größe in cm"] is None


def test_fields_of_the_envelope_are_added(stream, avro):
    first, *_ = unwrapped(stream, avro, add__fields="op,source.lsn:at,table", add__fields__prefix="_")
    assert first == {**ROW, "_op": "c", "_at": 1008, "_table": "orders"}


def test_an_envelope_without_a_row_is_a_data_error():
    record = ConnectRecord("t", None, None, None, {"before": 1, "after": 2, "op": "c"})
    with pytest.raises(DataError):
        Unwrap(options_of({}, "u.")).apply(record)


def test_what_is_no_envelope_passes():
    record = ConnectRecord("t", None, None, None, {"a": 1})
    assert Unwrap(options_of({}, "u.")).apply(record) is record


def test_numbers_with_fractions_are_what_their_schema_says():
    reader = JsonReader(schemas=True)

    def read(kind: dict, payload: str):
        return reader.read(json.dumps({"schema": kind}).encode()[:-1] + f', "payload": {payload}}}'.encode())

    assert read(None, '{"n": 1.5}').value == {"n": 1.5}
    assert type(read(None, "1.5").value) is float
    assert type(read({"type": "double", "default": 0.5}, "1.5").value) is float
    assert type(read({"type": "double", "default": 0.5}, "1.5").schema.default) is float
    assert (read({"type": "int64"}, "5.0").value, type(read({"type": "int64"}, "5e0").value)) == (5, int)
    decimal = {
        "type": "bytes",
        "name": "org.apache.kafka.connect.data.Decimal",
        "version": 1,
        "parameters": {"scale": "20"},
    }
    exact = read(decimal, "0.12345678901234567890").value
    assert int.from_bytes(exact, "big") == 12345678901234567890
    for kind, payload in (("int64", "5.5"), ("int64", "true"), ("string", "5"), ("boolean", "1")):
        with pytest.raises(CdcError) as caught:
            read({"type": kind}, payload)
        assert caught.value.code == "sink.record_unreadable"
