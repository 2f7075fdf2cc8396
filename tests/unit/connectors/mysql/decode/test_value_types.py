"""Types in Debezium's forms and their values, in each mode."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from cdcworker.connectors.mysql.binlog.rows import UNSENT
from cdcworker.connectors.mysql.binlog.table_map import Column
from cdcworker.connectors.mysql.catalog.completion import describes
from cdcworker.connectors.mysql.catalog.tables import CatalogColumn
from cdcworker.connectors.mysql.decode.table_plan import TablePlan, without_width
from cdcworker.connectors.mysql.decode.value_types import length_of, map_type, source_type_of, type_parameters
from cdcworker.connectors.mysql.types.column import ColumnType, TypeCode
from cdcworker.connectors.mysql.types.declared import Geometry
from cdcworker.connectors.mysql.types.modes import HandlingModes
from cdcworker.connectors.mysql.types.times import ZERO_TIMESTAMP, InvalidDate
from cdcworker.schemas import change as schema

T = TypeCode
MOMENT = datetime(2024, 2, 29, 1, 2, 3, 456789)
LONG_AGO = datetime(1, 1, 1)


def mapped(kind: ColumnType, *, nullable: bool = True, catalog: CatalogColumn | None = None, **modes: str):
    return map_type(Column("c", kind, nullable), catalog, HandlingModes(**modes))


def kind_of(avro: Any) -> tuple[Any, str | None]:
    return (avro["type"], avro.get("connect.name")) if isinstance(avro, dict) else (avro, None)


CONNECT, TIME, DATA = "org.apache.kafka.connect.data.", "io.debezium.time.", "io.debezium.data."


@pytest.mark.parametrize(
    ("kind", "modes", "value", "avro", "written"),
    [
        (ColumnType(T.TINY, is_unsigned=True), {}, 255, ("int", None), 255),
        (ColumnType(T.SHORT, is_unsigned=True), {}, 65535, ("int", None), 65535),
        (ColumnType(T.INT24, is_unsigned=True), {}, 1 << 23, ("int", None), 1 << 23),
        (ColumnType(T.LONG, is_unsigned=False), {}, -1, ("int", None), -1),
        (ColumnType(T.LONG, is_unsigned=True), {}, (1 << 32) - 1, ("long", None), (1 << 32) - 1),
        (ColumnType(T.LONGLONG, is_unsigned=True), {}, (1 << 64) - 1, ("long", None), -1),
        (ColumnType(T.LONGLONG, is_unsigned=True), {"bigint_unsigned": "precise"}, 255, ("bytes", CONNECT + "Decimal"), b"\0\xff"),
        (ColumnType(T.NEWDECIMAL, 10, 2), {}, Decimal("-1.50"), ("bytes", CONNECT + "Decimal"), b"\xff\x6a"),
        (
            *(ColumnType(T.NEWDECIMAL, 65, 30), {}, Decimal("9" * 35 + "." + "9" * 30)),
            *(("bytes", CONNECT + "Decimal"), (10**65 - 1).to_bytes(28, "big")),
        ),
        (ColumnType(T.NEWDECIMAL, 10, 2), {"decimal": "string"}, Decimal("1.50"), ("string", None), "1.50"),
        (ColumnType(T.NEWDECIMAL, 10, 2), {"decimal": "double"}, Decimal("1.50"), ("double", None), 1.5),
        (ColumnType(T.FLOAT, 4), {}, 1.5, ("float", None), 1.5),
        (ColumnType(T.BIT, 1), {}, 1, ("boolean", None), True),
        (ColumnType(T.BIT, 13), {}, 0x1234, ("bytes", DATA + "Bits"), b"\x34\x12"),
        (ColumnType(T.YEAR, is_unsigned=True), {}, 2024, ("int", TIME + "Year"), 2024),
        (ColumnType(T.DATE), {}, date(1970, 1, 2), ("int", TIME + "Date"), 1),
        (ColumnType(T.DATE), {"time": "connect"}, date(1969, 12, 31), ("int", CONNECT + "Date"), -1),
        (ColumnType(T.DATE), {"time": "isostring"}, date(2024, 2, 29), ("string", TIME + "IsoDate"), "2024-02-29Z"),
        (ColumnType(T.TIME2, 6), {}, timedelta(hours=-838), ("long", TIME + "MicroTime"), -838 * 3_600_000_000),
        (ColumnType(T.TIME2, 6), {"time": "connect"}, timedelta(hours=30), ("int", CONNECT + "Time"), 86_399_999),
        (ColumnType(T.TIME2, 6), {"time": "connect"}, timedelta(hours=-1), ("int", CONNECT + "Time"), 0),
        (ColumnType(T.TIME2, 6), {"time": "nanoseconds"}, timedelta(seconds=1), ("long", TIME + "NanoTime"), 10**9),
        (
            *(ColumnType(T.TIME2, 6), {"time": "isostring"}, timedelta(hours=-100, microseconds=-1)),
            *(("string", TIME + "IsoTime"), "-100:00:00.000001Z"),
        ),
        (ColumnType(T.DATETIME2, 3), {}, MOMENT, ("long", TIME + "Timestamp"), 1709168523456),
        (ColumnType(T.DATETIME2, 6), {}, MOMENT, ("long", TIME + "MicroTimestamp"), 1709168523456789),
        (ColumnType(T.DATETIME2, 0), {"time": "microseconds"}, LONG_AGO, ("long", TIME + "MicroTimestamp"), -62135596800000000),
        (ColumnType(T.DATETIME2, 6), {"time": "connect"}, MOMENT, ("long", CONNECT + "Timestamp"), 1709168523456),
        (ColumnType(T.DATETIME2, 6), {"time": "nanoseconds"}, MOMENT, ("long", TIME + "NanoTimestamp"), 1709168523456789000),
        (
            *(ColumnType(T.TIMESTAMP2, 3), {}, MOMENT.replace(tzinfo=UTC)),
            *(("string", TIME + "ZonedTimestamp"), "2024-02-29T01:02:03.456Z"),
        ),
        (ColumnType(T.TIMESTAMP2), {}, MOMENT.replace(tzinfo=UTC), ("string", TIME + "ZonedTimestamp"), "2024-02-29T01:02:03Z"),
        (ColumnType(T.VARCHAR, 9, collation=45), {}, "é", ("string", None), "é"),
        (ColumnType(T.BLOB, 2, collation=63), {}, b"\xff", ("bytes", None), b"\xff"),
        (ColumnType(T.BLOB, 2, collation=63), {"binary": "hex"}, b"\xff", ("string", None), "ff"),
        (ColumnType(T.BLOB, 2, collation=63), {"binary": "base64-url-safe"}, b"\xff\xef", ("string", None), "_-8="),
        (ColumnType(T.ENUM, 1, members=("a", "b")), {}, "b", ("string", DATA + "Enum"), "b"),
        (ColumnType(T.SET, 1, members=("a", "b")), {}, "a,b", ("string", DATA + "EnumSet"), "a,b"),
        (ColumnType(T.JSON, 4), {}, "[1]", ("string", DATA + "Json"), "[1]"),
        (ColumnType(T.VECTOR, 4), {}, (1.0, 2.0), ("array", DATA + "FloatVector"), [1.0, 2.0]),
        (ColumnType(T.STRING, 16, collation=63, declared="uuid"), {}, "u", ("string", DATA + "Uuid"), "u"),
        (ColumnType(T.STRING, 16, collation=63, declared="inet6"), {}, "::1", ("string", None), "::1"),
    ],
)  # fmt: skip
def test_a_value_is_written_as_debezium_writes_it(kind, modes, value, avro, written):
    found = mapped(kind, **modes)
    assert kind_of(found.avro) == avro
    assert found.parse(value) == written


@pytest.mark.parametrize(
    ("kind", "value", "epoch"),
    [
        (ColumnType(T.DATE), InvalidDate(0, 0, 0), 0),
        (ColumnType(T.DATETIME2), ZERO_TIMESTAMP, 0),
        (ColumnType(T.TIMESTAMP2, 3), ZERO_TIMESTAMP, "1970-01-01T00:00:00.000Z"),
    ],
)
def test_a_date_that_is_none_is_null_or_where_that_may_not_be_the_epoch(kind, value, epoch):
    assert mapped(kind).parse(value) is None
    assert mapped(kind, nullable=False).parse(value) == epoch


def test_geometries_hold_their_reference_system_and_points_their_coordinates():
    wkb = bytes.fromhex("0101000000000000000000f03f0000000000000040")
    point = map_type(Column("c", ColumnType(T.GEOMETRY, 4), True, geometry=1), None, HandlingModes())
    assert point.parse(Geometry(4326, wkb)) == {"x": 1.0, "y": 2.0, "wkb": wkb, "srid": 4326}
    other = map_type(Column("c", ColumnType(T.GEOMETRY, 4), True, geometry=0), None, HandlingModes())
    assert other.parse(Geometry(0, wkb)) == {"wkb": wkb, "srid": None}


def test_what_only_the_catalog_knows_counts():
    catalog = CatalogColumn("c", None, True, "longtext", is_json=True)
    assert kind_of(mapped(ColumnType(T.BLOB, 4, collation=46), catalog=catalog).avro) == ("string", DATA + "Json")
    digits = CatalogColumn("c", None, True, "float(7,4)")
    assert mapped(ColumnType(T.FLOAT, 4), catalog=digits).avro == "double"


def test_lengths_are_counted_in_characters():
    assert length_of(ColumnType(T.VARCHAR, 40, collation=45)) == 10
    assert length_of(ColumnType(T.STRING, 20, collation=28)) == 10
    assert length_of(ColumnType(T.VARCHAR, 40, collation=63)) == 0


@pytest.mark.parametrize(
    ("kind", "text", "parameters"),
    [
        (ColumnType(T.LONG, is_unsigned=True), "int(10) unsigned", {"type": "INT UNSIGNED"}),
        (ColumnType(T.NEWDECIMAL, 10, 2), "decimal(10,2)", {"type": "DECIMAL", "length": "10", "scale": "2"}),
        (ColumnType(T.VARCHAR, 40, collation=45), "varchar(10)", {"type": "VARCHAR", "length": "10"}),
    ],
)
def test_a_type_is_named_in_parameters(kind, text, parameters):
    found = type_parameters(Column("c", kind, True), CatalogColumn("c", None, True, text))
    assert found == {f"__debezium.source.column.{name}": value for name, value in parameters.items()}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("bigint(20)", "bigint"), ("int(10) unsigned", "int unsigned"), ("tinyint(1)", "tinyint(1)"), ("tinyint(4)", "tinyint"),
        ("point", "point"), ("varchar(20)", "varchar(20)"), ("decimal(12,2)", "decimal(12,2)"),
    ],
)  # fmt: skip
def test_a_width_in_which_integers_are_shown_is_no_part_of_their_type(text: str, shown: str):
    assert without_width(text) == shown


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (ColumnType(T.LONG, is_unsigned=False), "int"),
        (ColumnType(T.LONGLONG, is_unsigned=True), "bigint unsigned"),
        (ColumnType(T.NEWDECIMAL, 12, 2, is_unsigned=False), "decimal(12,2)"),
        (ColumnType(T.VARCHAR, 360, collation=45), "varchar(90)"),
        (ColumnType(T.VARCHAR, 9, collation=63), "varbinary(9)"),
        (ColumnType(T.STRING, 3, collation=63), "binary(3)"),
        (ColumnType(T.DATETIME2, 6), "datetime(6)"),
        (ColumnType(T.TIMESTAMP2), "timestamp"),
        (ColumnType(T.YEAR, is_unsigned=True), ""),
        (ColumnType(T.STRING, 16, collation=63, declared="uuid"), ""),
    ],
)
def test_a_type_that_only_the_log_knows_is_named_as_the_catalog_would(kind: ColumnType, text: str) -> None:
    assert source_type_of(kind) == text


@pytest.mark.parametrize(
    ("logged", "is_described"),
    [
        (ColumnType(T.LONG, is_unsigned=False), True),
        (ColumnType(T.LONG), True),
        (ColumnType(T.LONG, is_unsigned=True), False),
        (ColumnType(T.LONGLONG, is_unsigned=False), False),
    ],
)
def test_a_catalog_describes_a_column_as_long_as_it_has_its_type(logged: ColumnType, is_described: bool) -> None:
    assert describes(CatalogColumn("c", ColumnType(T.LONG, is_unsigned=False), True, "int"), logged) is is_described


@pytest.mark.parametrize(
    ("image", "unchanged", "may_replace"),
    [
        ((1, UNSENT, UNSENT), (1, 2), True),
        ((UNSENT, 5, UNSENT), (0, 2), False),
        # Images that lack large values only hold the key always.
        ((1, 5, UNSENT), (2,), False),
    ],
)
def test_an_update_that_names_its_key_may_be_a_replace(
    image: Any, unchanged: tuple[int, ...], may_replace: bool
) -> None:
    columns = (schema.Column("id", "int"), schema.Column("n", "int"), schema.Column("b", "string"))
    table = schema.Table(("d", "t"), 1, columns, (0,), {})
    plan = TablePlan(
        table, table, (0, 1, 2), (int, int, str), (ColumnType(T.LONG), ColumnType(T.LONG), ColumnType(T.BLOB, 2))
    )
    assert plan.may_replace(image, unchanged) is may_replace
