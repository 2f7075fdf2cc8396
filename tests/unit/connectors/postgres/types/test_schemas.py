"""Schemas of every type: no reader refuses one, and with it a whole topic."""

from __future__ import annotations

import pytest
from cdcworker.connectors.postgres.types.mapping import HandlingModes
from cdcworker.schemas.record_format import ConnectJsonFormat, FlatFormat, RecordFormat

from .. import messages as m
from ..stock_readers import read_avro, read_connect
from ..strict_avro import StrictParser
from ..type_matrix import MODES, SPECIAL, MatrixColumn, Stream, columns, schemas

MATRIX = dict(schemas())
JSON = RecordFormat(ConnectJsonFormat(), ConnectJsonFormat())


@pytest.mark.parametrize("name", MATRIX)
def test_a_strict_parser_takes_the_schema_of_every_type(name):
    StrictParser().parse(MATRIX[name])


def defaults_of(stream: Stream) -> dict[str, object]:
    [change] = stream.changes(m.delete(1, [b"1", *[None] * (len(stream.columns) - 1)]))
    [value] = stream.encoder.encode([change])[:1]
    schema = stream.schemas[int.from_bytes(value.value[1:5], "big")]
    row = schema["fields"][0]["type"][1]
    return {field["name"].partition("_")[2]: field["default"] for field in row["fields"] if "default" in field}


def test_defaults_that_avro_allows_are_written():
    found = defaults_of(Stream(columns(required=True, defaults=True)))
    assert (found["int4"], found["text"], found["uuid"]) == (7, "x", SPECIAL["uuid"])
    assert found["vector"] == [1.0, 2.0]
    assert {"point", "geometry", "_int4", "_text"}.isdisjoint(found)


@pytest.mark.parametrize("text", ["{}", "{NULL}"])
def test_a_list_without_values_is_a_default(text):
    [array] = [c for c in columns(required=True) if c.name.endswith("__int4")]
    key = columns(required=True)[0]
    column = MatrixColumn("c_a", array.oid, required=True, default=text)
    assert defaults_of(Stream([key, column])) == {"a": [None] * (text != "{}")}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("required", [False, True], ids=["optional", "required"])
@pytest.mark.parametrize("flat", [None, FlatFormat(deletes="rewrite")], ids=["envelope", "flat"])
def test_connect_takes_the_schema_of_every_type_with_a_default(mode, required, flat):
    form = RecordFormat(ConnectJsonFormat(), ConnectJsonFormat(), flat)
    stream = Stream(columns(required=required, defaults=True), MODES[mode], form)
    for value in stream.values(m.delete(1, [b"1", *[None] * (len(stream.columns) - 1)])):
        assert read_connect(value) is not None


@pytest.mark.parametrize("mode", MODES)
def test_stock_deserializers_read_records_of_schemas_with_defaults(mode):
    stream = Stream(columns(required=False, defaults=True), MODES[mode])
    [value] = stream.values(m.delete(1, [b"1", *[None] * (len(stream.columns) - 1)]))
    assert read_avro(stream.schemas, value)["before"]["id"] == 1


def test_a_default_that_is_no_number_is_not_written():
    numeric, _ = [
        c
        for c in columns(required=True)
        if c.typmod == (12 << 16 | 2) + 4 and c.name.endswith("_numeric") and "__" not in c.name
    ]
    key = columns(required=True)[0]
    column = MatrixColumn("c_n", numeric.oid, numeric.typmod, required=True, default="NaN")
    assert defaults_of(Stream([key, column], HandlingModes(out_of_range="exact"))) == {}
