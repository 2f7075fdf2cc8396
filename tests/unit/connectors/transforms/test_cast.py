"""Cast, with Java's rules for numbers."""

import math
from datetime import UTC, datetime
from time import process_time

import pytest
from cdcworker.connectors.transforms.data import DATE, DECIMAL, TIME, TIMESTAMP, ConnectRecord, ConnectSchema
from cdcworker.schemas.errors import CdcError

TYPES = ("int8", "int16", "int32", "int64", "float32", "float64", "boolean", "string")


def cast(kit, schema, value, kind, **keys):
    return kit.applied("Cast$Value", kit.value(schema, value), spec=kind, **keys)


@pytest.mark.parametrize("kind", TYPES)
def test_the_whole_value(kit, kind):
    made = cast(kit, kit.INT32, 42, kind)
    expected = {"float32": 42.0, "float64": 42.0, "boolean": True, "string": "42"}.get(kind, 42)
    assert made.value == expected
    assert type(made.value) is type(expected)
    assert made.value_schema.type == kind


def test_the_whole_key_without_a_schema(kit):
    assert kit.applied("Cast$Key", ConnectRecord("t", None, "42"), spec="int32").key == 42


@pytest.mark.parametrize(
    ("kind", "type", "value", "expected"),
    [
        ("int64", "int8", 300, 44),
        ("int64", "int32", 1 << 40, 0),
        ("float64", "int8", 1e20, -1),
        ("float64", "int32", 1e20, (1 << 31) - 1),
        ("float64", "int64", -1e30, -(1 << 63)),
        ("float64", "int64", math.nan, 0),
        ("float64", "int64", -1.9, -1),
        ("float64", "float32", 1e300, math.inf),
        ("float64", "boolean", 0.9, False),
        ("string", "boolean", "TRUE", True),
        ("string", "boolean", "yes", False),
        ("string", "float64", " 1.5d ", 1.5),
        ("string", "float64", "-Infinity", -math.inf),
        ("string", "float64", "0x1.8p1", 3.0),
        ("string", "float32", "-0x1p1024f", -math.inf),
        ("string", "float64", "5.e1", 50.0),
        ("string", "int64", "+7", 7),
        ("float64", "string", 1e10, "1.0E10"),
        ("float32", "string", 0.10000000149011612, "0.1"),
        ("float64", "string", 100.0, "100.0"),
        ("boolean", "string", True, "true"),
        ("boolean", "int16", True, 1),
        ("bytes", "string", b"\x01\x02", "AQI="),
    ],
)
def test_numbers_are_narrowed_as_java_does(kit, kind, type, value, expected):
    assert cast(kit, ConnectSchema(kind), value, type).value == expected


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("int8", "300"), ("int32", "1.5"), ("float64", "1_0"), ("float64", "NaNd"), ("float64", "0x.p1"), ("int64", "abc"),
    ],
)  # fmt: skip
def test_text_that_is_no_such_number_is_an_error_without_the_text(kit, kind, text):
    with pytest.raises(CdcError, match="Value was out of range for requested data type") as caught:
        cast(kit, kit.STRING, text, kind)
    assert text not in str(caught.value)


@pytest.mark.parametrize("text", ["1" * 100_000 + "x", "0x" + "1" * 100_000, "1." + "1" * 100_000 + "x"])
def test_a_long_text_that_is_no_number_is_refused_at_once(kit, text):
    begun = process_time()
    with pytest.raises(CdcError, match="out of range"):
        cast(kit, kit.STRING, text, "float64")
    assert process_time() - begun < 1


def test_logical_types_are_numbers_and_texts(kit):
    date, time, moment = (
        ConnectSchema(k, name=n, version=1) for k, n in (("int32", DATE), ("int32", TIME), ("int64", TIMESTAMP))
    )
    assert cast(kit, date, 18_263, "int32").value == 18_263
    assert cast(kit, date, 18_263, "string").value == "2020-01-02"
    assert cast(kit, time, 45_296_789, "string").value == "12:34:56.789Z"
    assert cast(kit, moment, 1_577_968_496_789, "string").value == "2020-01-02T12:34:56.789Z"
    decimal = ConnectSchema("bytes", name=DECIMAL, version=1, parameters={"scale": "2"})
    assert cast(kit, decimal, (1999).to_bytes(2, "big"), "string").value == "19.99"
    assert cast(kit, decimal, (1999).to_bytes(2, "big"), "int32").value == 19
    assert cast(kit, decimal, (1999).to_bytes(2, "big"), "float64").value == 19.99


def test_of_a_whole_value_the_name_is_kept_but_for_that_of_a_logical_type(kit):
    named = ConnectSchema("int32", name="io.debezium.time.Date", version=1)
    assert cast(kit, named, 1, "string").value_schema == ConnectSchema(
        "string", name="io.debezium.time.Date", version=1
    )
    decimal = ConnectSchema("bytes", True, name=DECIMAL, version=1, parameters={"scale": "2"})
    assert cast(kit, decimal, b"\1", "string").value_schema == kit.optional(kit.STRING)


def test_fields_of_a_struct(kit):
    schema = kit.struct(("a", kit.INT64), ("b", kit.optional(kit.STRING, "7")), ("c", kit.BYTES))
    made = cast(kit, schema, {"a": 1, "b": None, "c": b"x"}, "a:string,b:int8")
    assert made.value == {"a": "1", "b": 7, "c": b"x"}
    assert made.value_schema == kit.struct(("a", kit.STRING), ("b", kit.optional(kit.INT8, 7)), ("c", kit.BYTES))
    assert (
        cast(kit, schema, {"a": 1, "b": None, "c": b"x"}, "b:int8", replace_null_with_default="false").value["b"]
        is None
    )


def test_fields_of_a_map(kit):
    assert cast(kit, None, {"a": "1", "b": 2}, "a:int8,z:string").value == {"a": 1, "b": 2, "z": None}


def test_what_cannot_be_cast_names_the_types(kit):
    with pytest.raises(CdcError, match="does not support casting from MAP; supported types are"):
        cast(kit, None, {"a": {}}, "a:int8")
    with pytest.raises(CdcError, match=r"Unexpected type in Cast transformation: class \[B"):
        cast(kit, kit.BYTES, b"1", "int8")
    with pytest.raises(CdcError, match="not supported by Connect's data API"):
        cast(kit, None, {"a": datetime(2020, 1, 1, tzinfo=UTC)}, "a:int8")


def test_null_passes(kit):
    record = kit.value(kit.optional(kit.INT32), None)
    assert kit.applied("Cast$Value", record, spec="string") is record
