"""The source of a query over MariaDB: the suite of all databases, its types, its transaction, its login."""

from __future__ import annotations

import pytest
from cdcworker.connectors.query_source import mysql as databases
from cdcworker.schemas.placeholders import unscaled

from tests.contract.query_source.databases import *  # noqa: F403 - what every database has to do
from tests.contract.query_source.databases import DIFF, TIMES, code_of, ids, name_of, opened, read_all, values
from tests.integration.connectors.query_source.servers import MariaDbOutside

pytestmark = pytest.mark.mysql
TIME = "io.debezium.time."
DATA = "io.debezium.data."
DAY_US = 86_400_000_000


@pytest.fixture(scope="module")
def database(mysql):
    made = MariaDbOutside(mysql)
    yield made
    made.close()


@pytest.fixture
def outside(database):
    database.empty()
    return database


@pytest.mark.parametrize(
    ("declared", "expressions", "expected", "avro"),
    [
        ("tinyint", ["-128"], [-128], "int"),
        ("int unsigned", ["4294967295"], [2**32 - 1], "long"),
        ("bigint", ["-9223372036854775808", "null"], [-(2**63), None], "long"),
        ("bigint unsigned", ["9223372036854775807"], [2**63 - 1], "long"),
        ("float", ["0.1", "16777217"], [0.10000000149011612, 16777216.0], "float"),
        ("double", ["1e308"], [1e308], "double"),
        ("decimal(20,2)", ["'-123456789012345678.25'"], [unscaled(-12345678901234567825)], "org.apache.kafka.connect.data.Decimal"),
        ("decimal(5,0) unsigned", ["99999"], [unscaled(99999)], "org.apache.kafka.connect.data.Decimal"),
        ("varbinary(9)", ["x'00ff'"], [b"\0\xff"], "bytes"),
        ("varchar(9) character set latin1", ["'é'"], ["é"], "string"),
        ("json", ["'{\"b\": [1, null]}'"], ['{"b": [1, null]}'], "string"),
        ("date", ["'1969-12-31'", "'0000-00-00'"], [-1, None], TIME + "Date"),
        ("time(3)", ["'-838:59:59'", "'04:05:06.789'"], [-3020399000000, 14706789000], TIME + "MicroTime"),
        ("datetime(6)", ["'1970-01-02 00:00:00.000001'", "'0000-00-00 00:00:00'"], [DAY_US + 1, None], TIME + "MicroTimestamp"),
        ("datetime", ["'1970-01-02 00:00:01'"], [86_401_000], TIME + "Timestamp"),
        ("timestamp(3) null", ["'2024-03-31 02:30:00.5'"], ["2024-03-31T02:30:00.500Z"], TIME + "ZonedTimestamp"),
        ("year", ["2155"], [2155], TIME + "Year"),
        ("enum('a','b,c')", ["'b,c'"], ["b,c"], "string"),
        ("set('a','b')", ["'a,b'"], ["a,b"], "string"),
        ("bit(9)", ["b'100000001'"], [b"\x01\x01"], DATA + "Bits"),
        ("uuid", ["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"], ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"], "string"),
    ],
)  # fmt: skip
def test_values_have_the_types_of_the_log(outside, declared, expressions, expected, avro):
    outside.run("set time_zone = '+00:00'")
    found, kind = values(outside, declared, *expressions)
    assert [repr(each) for each in found] == [repr(each) for each in expected]
    assert name_of(kind).endswith(avro)


def test_a_number_that_no_long_holds_is_refused_and_not_negative(outside):
    outside.run("create table many (id bigint unsigned primary key)")
    outside.run("insert into many values (9223372036854775807)")
    query = {"query": "select * from many"}
    _, cursor = read_all(opened(outside, **query))
    outside.run("insert into many values (18446744073709551615)")
    error = code_of(lambda: read_all(opened(outside, **query), cursor))
    assert (error.code, error.where["field"]) == ("plugin.record_refused", "id")
    wide = {"query": "select cast(id as decimal(20)) as id from many", "query.key": None}
    assert len(read_all(opened(outside, **wide))[0]) == 2


def test_a_number_below_the_look_back_is_compared_as_one(outside):
    outside.run("create table few (id bigint unsigned primary key)")
    outside.run("insert into few values (1), (3)")
    more = {"query": "select * from few", "query.lookback": "10"}
    _, cursor = read_all(opened(outside, **more))
    outside.run("insert into few values (2)")
    assert ids(read_all(opened(outside, **more), cursor)[0]) == [2]


def test_times_are_in_utc_whatever_the_zone_of_the_server(outside):
    outside.run("set time_zone = '+05:00'")
    outside.run("create table stamps (id bigint primary key, changed timestamp(6) null)")
    outside.run("insert into stamps values (1, '2024-01-01 10:00:00')")
    source = opened(outside, **{**TIMES, "query": "select * from stamps"})
    page = source.read(None)
    assert (page.records[0].row["changed"], page.cursor["high"]) == (
        "2024-01-01T05:00:00.000000Z",
        "2024-01-01 05:00:00.000000",
    )
    outside.run("insert into stamps values (2, '2024-01-01 10:00:00'), (3, '2024-01-01 09:59:59')")
    assert ids(read_all(source, page.cursor)[0]) == [2]


def test_a_time_that_is_none_halts_the_task(outside):
    outside.add(1, "2024-01-01 10:00:00")
    outside.run("insert into orders values (2, 'c', '2024-02-00 00:00:00')")
    assert code_of(lambda: read_all(opened(outside, **TIMES))).code == "plugin.record_refused"


@pytest.mark.parametrize(
    "query", ["select id from orders into @x", "select changes() as id", "select 1 as id procedure analyse()"]
)  # fmt: skip
def test_a_query_that_would_change_something_is_refused(outside, query):
    outside.run(
        "create function changes() returns int modifies sql data begin insert into orders (id) values (99); return 1; end"
    )
    error = code_of(lambda: read_all(opened(outside, query=query, **{"query.key": None})))
    assert error.code == "query.refused"
    assert read_all(opened(outside))[0] == []


def test_rows_that_the_server_leaves_out_are_not_gone(outside):
    outside.write(3)
    _, cursor = read_all(opened(outside, **DIFF))
    cut_short = opened(outside, **DIFF, query="select * from orders limit rows examined 1")
    assert code_of(lambda: cut_short.read(cursor)).code == "query.refused"


def test_a_wrong_login_is_told_without_the_password(outside):
    error = code_of(lambda: opened(outside, **{"connection.password": "wrong-s3cret"}))
    assert (error.code, error.kind) == ("query.login_refused", "config")
    assert "s3cret" not in f"{error} {error.where} {error.__context__!r}"


def test_a_server_that_stands_still_is_given_up_and_tried_again(outside, monkeypatch):
    outside.write(1)
    source = opened(outside, query=f"select id, customer from orders where ({outside.slow}) > 0")
    # Long before the server ends the query by itself.
    monkeypatch.setattr(databases, "SLACK_S", 0.3 - 30.0)
    error = code_of(lambda: source.read(None))
    assert (error.code, "does not answer" in error.message) == ("plugin.unavailable", True)
