from __future__ import annotations

import pyarrow as pa
import pytest
from cdcworker.connectors.warehouses import value_text as values
from cdcworker.connectors.warehouses.source_types import TargetColumn, target_column, widened


def named(kind, name, **more):
    return {"type": kind, "connect.name": name, **more}


@pytest.mark.parametrize(
    ("avro", "source", "expected"),
    [
        ("long", "bigint", "bigint"),
        ({"type": "int", "connect.type": "int16"}, "smallint", "smallint"),
        ("string", "character varying(20)", "character varying(20)"),
        ("string", "public.mood", "text"),
        ("string", "citext", "text"),
        ("string", "", "text"),
        ("bytes", "bytea", "bytea"),
        ("string", "bytea", "text"),
        ("boolean", "bit(1)", "boolean"),
        (
            named("bytes", "org.apache.kafka.connect.data.Decimal", scale=2, precision=10),
            "numeric(10,2)",
            "numeric(10,2)",
        ),
        (named("bytes", "org.apache.kafka.connect.data.Decimal", scale=2, precision=64), "money", "numeric"),
        (named("bytes", "org.apache.kafka.connect.data.Decimal", scale=2, precision=10), "", "numeric(10,2)"),
        ("double", "numeric(10,2)", "numeric(10,2)"),
        ("string", "numeric(10,2)", "numeric(10,2)"),
        (
            named("long", "io.debezium.time.MicroTimestamp"),
            "timestamp without time zone",
            "timestamp without time zone",
        ),
        (
            named("long", "io.debezium.time.Timestamp"),
            "timestamp(3) without time zone",
            "timestamp(3) without time zone",
        ),
        (named("string", "io.debezium.time.ZonedTimestamp"), "timestamp with time zone", "timestamp with time zone"),
        (named("string", "io.debezium.data.Uuid"), "uuid", "uuid"),
        (named("string", "io.debezium.data.Json"), "json", "json"),
        (named("string", "io.debezium.data.Json"), "hstore", "jsonb"),
        (named("bytes", "io.debezium.data.Bits"), "bit varying(5)", "bit varying(5)"),
        ({"type": "array", "items": ["null", "int"]}, "integer[]", "integer[]"),
        ({"type": "array", "items": ["null", "string"]}, "public.mood[]", "text[]"),
        ({"type": "map", "values": "string"}, "hstore", "jsonb"),
        ("string", "int4range", "int4range"),
        # Of MySQL.
        (named("long", "io.debezium.time.MicroTime"), "time(6)", "interval"),
        (named("long", "io.debezium.time.MicroTime"), "time without time zone", "time without time zone"),
        ("int", "int unsigned", "integer"),
        ("double", "double", "double precision"),
        ("string", "varchar(20)", "text"),
        ("string", "enum('a','b')", "text"),
        (named("string", "io.debezium.time.ZonedTimestamp"), "timestamp(6)", "timestamp with time zone"),
        ("string", "tsmultirange", "tsmultirange"),
    ],
)
def test_a_column_gets_the_source_type_where_its_values_can_be_read_as_it(avro, source, expected):
    assert target_column("c", {"name": "c", "type": ["null", avro], "cdc.type": source}).type == expected


@pytest.mark.parametrize(
    ("have", "want", "result"),
    [
        ("integer", "bigint", "bigint"),
        ("bigint", "smallint", "bigint"),
        ("numeric(10,2)", "numeric(12,2)", "numeric(12,2)"),
        ("numeric(10,2)", "numeric(10,4)", "numeric(12,4)"),
        ("numeric", "numeric(10,4)", "numeric"),
        ("numeric(10,2)", "numeric", "numeric"),
        ("integer", "numeric(5,2)", "numeric(12,2)"),
        ("real", "double precision", "double precision"),
        ("character varying(5)", "character varying(9)", "character varying(9)"),
        ("character varying(9)", "character varying(5)", "character varying(9)"),
        ("character varying(5)", "text", "text"),
        ("text", "integer", "text"),
        ("integer", "text", "text"),
        ("date", "timestamp without time zone", "timestamp without time zone"),
        ("timestamp(3) without time zone", "timestamp without time zone", "timestamp without time zone"),
        ("integer[]", "bigint[]", "bigint[]"),
        ("integer", "integer[]", None),
        ("date", "bigint", None),
        ("bigint", "double precision", None),
        ("timestamp without time zone", "timestamp with time zone", None),
    ],
)
def test_a_column_is_widened_only_where_nothing_is_lost(have, want, result):
    assert widened(have, want) == result


def text(kind, array, type_="text", unit=0):
    return values.to_text(array, TargetColumn("c", type_, kind, unit)).to_pylist()


def test_decimals_of_any_length_agree_with_the_slow_way():
    numbers = [0, 1, -1, 127, 128, -128, -129, 10**20, -(10**20), 10**30]
    raw = [number.to_bytes((number.bit_length() >> 3) + 1, "big", signed=True) for number in numbers]
    fast = text("decimal", pa.array([*raw, None, b""], pa.binary()), unit=3)
    from decimal import Decimal

    assert [Decimal(item) for item in fast[:-2]] == [Decimal(number).scaleb(-3) for number in numbers]
    assert fast[-2:] == [None, "NaN"]
    slow = text("decimal", pa.array([*raw, (10**60).to_bytes(26, "big", signed=True)], pa.binary()), unit=3)
    assert [Decimal(item) for item in slow[:-1]] == [Decimal(item) for item in fast[:-2]]
    assert Decimal(slow[-1]) == Decimal(10**57)


def test_a_slice_of_a_column_is_read_from_its_own_start():
    whole = pa.array([b"\x01", b"\x02\x03", None, b"\xff"], pa.binary())
    assert text("decimal", whole.slice(1, 3)) == ["515", None, "-1"]
    assert text("bytes", whole.slice(1, 3)) == ["\\x0203", None, "\\xff"]


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        (0, "1970-01-01"),
        (-719162, "0001-01-01"),
        (-719163, "0001-12-31 BC"),
        (2932897, "10000-01-01"),
        (2**31 - 1, "infinity"),
        (-(2**31), "-infinity"),
    ],
)
def test_dates_outside_of_four_digits_keep_their_meaning(days, expected):
    assert text("date", pa.array([days, 1, None], pa.int32())) == [expected, "1970-01-02", None]


def test_times_and_timestamps_in_every_unit():
    assert text("time", pa.array([86_400_000_000, None]), unit=1000) == ["24:00:00.000000", None]
    assert text("timestamp", pa.array([1, None], pa.int64()), unit=1_000_000) == ["1970-01-01 00:00:00.001000", None]
    assert text("timestamp", pa.array([-1]), unit=1) == ["1969-12-31 23:59:59.999999"]
    assert text("timestamp", pa.array([9_223_372_036_825_200_000]), unit=1000) == ["infinity"]
    assert text("timestamp", pa.array([9_223_372_036_825_200]), unit=1_000_000) == ["infinity"]
    assert text("timestamp", pa.array([-9_223_372_036_832_400_000]), unit=1000) == ["-infinity"]


def test_iso_years_with_a_sign_are_written_as_postgresql_reads_them():
    column = pa.array(["+21016-01-02T03:04:05Z", "-0043-03-15T00:00:00Z", "2024-01-01T00:00:00Z", "-infinity", None])
    assert text("iso", column, "timestamp with time zone") == [
        "21016-01-02 03:04:05Z",
        "0044-03-15 00:00:00Z BC",
        "2024-01-01T00:00:00Z",
        "-infinity",
        None,
    ]


def test_arrays_quote_what_needs_it():
    column = target_column(
        "c", {"name": "c", "type": {"type": "array", "items": ["null", "string"]}, "cdc.type": "text[]"}
    )
    found = values.to_text(pa.array([["a", None, 'q"\\', "NULL", ""], [], None], pa.list_(pa.string())), column)
    assert found.to_pylist() == ['{"a",NULL,"q\\"\\\\","NULL",""}', "{}", None]


def test_bits_have_their_length():
    bits = {"type": "bytes", "connect.name": "io.debezium.data.Bits", "connect.parameters": {"length": "9"}}
    column = target_column("c", {"name": "c", "type": bits, "cdc.type": "bit(9)"})
    assert values.to_text(pa.array([b"\x05\x00", b"\x00\x01"], pa.binary()), column).to_pylist() == [
        "000000101",
        "100000000",
    ]
