"""Values of every type that MariaDB has: what the binary log gives is what the server prints."""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from cdcworker.connectors.mysql.binlog.table_map import TableMap
from cdcworker.connectors.mysql.types.declared import Geometry
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pymysql.converters import escape_string

from ..logged import LoggedServer

pytestmark = pytest.mark.mysql

NAMES = map("t{}".format, itertools.count())


@dataclass(frozen=True)
class Case:
    """A column, values to store, and how the server is asked for a text that is the same for the same value."""

    column: str
    values: st.SearchStrategy[Any]
    asked: str = "v"
    literal: Callable[[Any], str] = lambda value: literal_text(value)
    shown: Callable[[Any], str] = str
    declared: str = ""


def literal_text(value: Any) -> str:
    return f"'{escape_string(value)}'" if isinstance(value, str) else str(value)


def integers(bits: int, *, unsigned: bool) -> st.SearchStrategy[int]:
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return st.integers(low, high) | st.sampled_from([low, high, 0, 1])


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    top = 10**precision - 1
    return st.integers(-top, top).map(lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), -scale)))


def spans(digits: int) -> st.SearchStrategy[timedelta]:
    unit = 10 ** (6 - digits)
    top = (838 * 3600 + 59 * 60 + 59) * 10**digits
    return st.integers(-top, top).map(lambda n: timedelta(microseconds=n * unit))


def span_text(digits: int) -> Callable[[timedelta], str]:
    def shown(value: timedelta) -> str:
        micros = abs(value) // timedelta(microseconds=1)
        seconds, micros = divmod(micros, 1_000_000)
        text = f"{'-' if value < timedelta() else ''}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        return f"{text}.{micros:06}"[: len(text) + 1 + digits] if digits else text

    return shown


def moment_text(digits: int) -> Callable[[Any], str]:
    def shown(value: Any) -> str:
        if isinstance(value, datetime):
            text, micros = value.strftime(f"{value.year:04}-%m-%d %H:%M:%S"), value.microsecond
        else:
            text, micros = str(value)[:19], value.microsecond
        return f"{text}.{micros:06}"[: 20 + digits] if digits else text

    return shown


def moment_literal(value: Any) -> str:
    return f"'{value}'"


def moments(digits: int) -> st.SearchStrategy[datetime]:
    return st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59)).map(
        lambda value: value.replace(microsecond=value.microsecond // 10 ** (6 - digits) * 10 ** (6 - digits))
    )


def stamps(digits: int) -> st.SearchStrategy[str]:
    top = (2**31 - 1) * 10**digits
    return st.integers(10**digits, top).map(
        lambda n: str(datetime(1970, 1, 1) + timedelta(microseconds=n * 10 ** (6 - digits)))
    ) | st.just("0000-00-00 00:00:00")


INVALID_DATES = st.sampled_from(["0000-00-00", "2021-00-00", "2021-07-00", "0000-01-01", "2023-02-31"])
INVALID_MOMENTS = st.sampled_from(["0000-00-00 00:00:00", "2021-00-05 01:02:03", "2023-02-31 23:59:59"])


def texts(alphabet: str, most: int) -> st.SearchStrategy[str]:
    return st.text(st.sampled_from(alphabet), max_size=most)


LATIN = "abcXYZ äöüßÿéñ€™'\\\""
UNICODE = "aé€漢字😀𐍈\x00\t' \\"
JAPANESE = "aあ漢字カ～①ｱ"
BLOB = st.binary(max_size=300)
HEX = lambda value: f"X'{value.hex()}'" if value else "''"  # noqa: E731


def bytes_case(column: str, values: st.SearchStrategy[bytes]) -> Case:
    return Case(column, values, "hex(v)", HEX, lambda value: value.hex().upper())


def text_case(column: str, alphabet: str, most: int = 12) -> Case:
    def shown(value: str) -> str:
        return value.encode().hex().upper()

    return Case(column, texts(alphabet, most), "hex(convert(v using utf8mb4))", shown=shown)


WIDTHS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
CASES = [
    *(Case(name, integers(bits, unsigned=False)) for name, bits in WIDTHS.items()),
    *(Case(f"{name} unsigned", integers(bits, unsigned=True)) for name, bits in WIDTHS.items()),
    *(
        Case(f"decimal({p},{s})", decimals(p, s), shown=lambda value: format(value, "f"))
        for p, s in ((1, 0), (5, 5), (10, 2), (18, 9), (38, 38), (65, 0), (65, 30), (20, 10))
    ),
    Case("float", st.floats(width=32, allow_nan=False, allow_infinity=False), "cast(v as double)", repr, shown=repr),
    Case("double", st.floats(allow_nan=False, allow_infinity=False), "v", repr, shown=repr),
    Case("bit(1)", st.integers(0, 1), "v+0"),
    Case("bit(13)", st.integers(0, 2**13 - 1), "v+0"),
    Case("bit(64)", st.integers(0, 2**64 - 1), "v+0"),
    Case("year", st.integers(1901, 2155) | st.just(0), shown=lambda value: f"{value:04}"),
    Case("year(2)", st.integers(1970, 2069), "year(v)"),
    Case("date", st.dates(date(1, 1, 1)).map(str) | INVALID_DATES, shown=str),
    *(Case(f"time({n})", spans(n), literal=lambda v: f"'{span_text(6)(v)}'", shown=span_text(n)) for n in range(7)),
    *(
        Case(f"datetime({n})", moments(n) | INVALID_MOMENTS, literal=moment_literal, shown=moment_text(n))
        for n in range(7)
    ),
    *(Case(f"timestamp({n}) null", stamps(n), shown=moment_text(n)) for n in range(7)),
    text_case("char(12) character set utf8mb4", UNICODE),
    text_case("char(12) character set ucs2", "aé€漢字 "),
    text_case("char(12) character set utf32", UNICODE),
    text_case("char(200) character set utf8mb4", UNICODE, 60),
    text_case("varchar(12) character set latin1", LATIN),
    text_case("varchar(300) character set utf8mb4", UNICODE, 300),
    text_case("varchar(12) character set utf8mb3", "aé€漢字"),
    text_case("varchar(12) character set gbk", "a漢字中文"),
    text_case("varchar(12) character set big5", "a漢字中文碁裏"),
    text_case("varchar(12) character set sjis", "aあ漢字カｱ\\"),
    text_case("varchar(12) character set cp932", JAPANESE),
    text_case("varchar(12) character set ujis", "aあ漢字カｱ"),
    text_case("varchar(12) character set eucjpms", JAPANESE),
    text_case("varchar(12) character set euckr", "a한국어"),
    text_case("varchar(12) character set utf16", UNICODE),
    text_case("varchar(12) character set utf16le", UNICODE),
    text_case("varchar(12) character set cp1251", "aЖдя"),
    text_case("varchar(12) character set koi8r", "aЖдя"),
    text_case("varchar(12) character set greek", "aΩλ"),
    text_case("varchar(12) character set keybcs2", "aČüéď"),
    text_case("tinytext character set latin1", LATIN, 60),
    text_case("text", UNICODE, 500),
    text_case("mediumtext character set ucs2", "aé€漢字"),
    text_case("longtext collate utf8mb4_uca1400_ai_ci", UNICODE),
    text_case("varchar(200) compressed", "aé", 200),
    text_case("text compressed character set latin1", "aé", 900),
    bytes_case("binary(9)", st.binary(max_size=9)),
    bytes_case("varbinary(300)", BLOB),
    bytes_case("tinyblob", st.binary(max_size=255)),
    bytes_case("blob", BLOB),
    bytes_case("mediumblob", BLOB),
    bytes_case("longblob", BLOB),
    Case("enum('a','é','漢','x,y')", st.sampled_from(["a", "é", "漢", "x,y"])),
    Case("enum('a','é') character set latin1", st.sampled_from(["a", "é", "none of them"])),
    Case(
        "set('a','é','漢','b') character set utf8mb4",
        st.sets(st.sampled_from(["a", "é", "漢", "b"])).map(",".join),
    ),
    Case("json", st.sampled_from(['{"a": [1, 2.50, null], "é": "漢"}', "[]", '"x"', "12"])),
    Case("uuid", st.uuids(version=4).map(str) | st.uuids(version=1).map(str), declared="uuid"),
    Case("inet4", st.ip_addresses(v=4).map(str), declared="inet4"),
    Case(
        "inet6",
        st.ip_addresses(v=6).map(str)
        | st.ip_addresses(v=4).map("::ffff:{}".format)
        | st.ip_addresses(v=4).map("::{}".format)
        | st.sampled_from(["::", "::1", "::ffff", "::1:0", "1::", "1:0:0:2::3", "0:1::", "fe80::1:0:0:1"])
        | st.sampled_from(["0:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:0", "1:0:3:0:5:6:7:8", "::1:0:3:0:5:6"]),
        declared="inet6",
    ),
    Case(
        "geometry",
        st.tuples(st.integers(-180, 180), st.integers(-90, 90)),
        "concat(ST_SRID(v), ' ', hex(ST_AsWKB(v)))",
        lambda point: f"ST_GeomFromText('POINT({point[0]} {point[1]})', 4326)",
        lambda value: f"{value.srid} {value.wkb.hex().upper()}",
    ),
]


GROUP = 20
"""Cases that are columns of one table in CI."""


def check_against_the_server(server: LoggedServer, cases: Sequence[Case], rows: Sequence[Sequence[Any]]) -> None:
    """Stores rows in a table that has a column of each case; what the log gives of each is what the server prints."""
    table = next(NAMES)
    columns = "".join(f", v{i} {case.column}" for i, case in enumerate(cases))
    stored = ",".join(
        f"({number},{','.join(case.literal(value) for case, value in zip(cases, row, strict=True))})"
        for number, row in enumerate(rows)
    )
    found = server.rows(
        "set time_zone = '+00:00', sql_mode = 'ALLOW_INVALID_DATES'",
        f"create table {table} (id int primary key{columns})",
        f"insert ignore into {table} values {stored}",
        complete=partial(declare, cases),
    )
    logged_rows = [row.after for event in found for row in event.rows]
    asked = ",".join(re.sub(r"\bv\b", f"v{i}", case.asked) for i, case in enumerate(cases))
    printed = server.printed(f"select {asked} from shop.{table} order by id")
    assert len(printed) == len(logged_rows) == len(rows)
    for i, case in enumerate(cases):
        texts = [None if row[i + 1] is None else case.shown(row[i + 1]) for row in logged_rows]
        assert texts == [same_form(case, row[i]) for row in printed], case.column


@pytest.mark.parametrize("first", range(0, len(CASES), GROUP))
def test_what_the_log_gives_is_what_the_server_prints(first: int, logged: LoggedServer) -> None:
    cases = CASES[first : first + GROUP]

    @settings(max_examples=3, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(st.lists(st.tuples(*(case.values for case in cases)), min_size=1, max_size=10))
    def check(rows: list[tuple[Any, ...]]) -> None:
        check_against_the_server(logged, cases, rows)

    check()


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.column)
def test_many_values_of_a_type_are_those_that_the_server_prints(case: Case, logged: LoggedServer) -> None:
    @settings(max_examples=20, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(st.lists(st.tuples(case.values), min_size=1, max_size=60))
    def check(rows: list[tuple[Any]]) -> None:
        check_against_the_server(logged, [case], rows)

    check()


def declare(cases: Sequence[Case], table: TableMap) -> TableMap:
    """What a catalog would add to the table map."""
    key, *values = table.columns
    told = (
        value._replace(type=value.type._replace(declared=case.declared)) if case.declared else value
        for case, value in zip(cases, values, strict=True)
    )
    return table._replace(columns=(key, *told))


def same_form(case: Case, text: str | None) -> str | None:
    return repr(float(text)) if text is not None and case.shown is repr else text


def test_a_null_and_a_value_beside_it(logged: LoggedServer) -> None:
    (rows,) = logged.rows(
        "create or replace table nulls (a int, b varchar(3), c decimal(4,1), d date, e int, f int, g int, h int, i blob)",
        "insert into nulls values (null, 'x', null, null, 1, 2, 3, 4, null), (1, null, 1.5, '2024-01-01', null, 2, 3, 4, 'z')",
    )
    assert [row.after for row in rows.rows] == [
        (None, "x", None, None, 1, 2, 3, 4, None),
        (1, None, Decimal("1.5"), date(2024, 1, 1), None, 2, 3, 4, b"z"),
    ]


def test_a_geometry_has_its_reference_system_and_its_form(logged: LoggedServer) -> None:
    (rows,) = logged.rows("create or replace table places (g point)", "insert into places values (point(1, 2))")
    assert rows.rows[0].after == (Geometry(0, struct.pack("<BIdd", 1, 1, 1, 2)),)
