"""The source of a query over PostgreSQL: the suite of all databases, its types, its transaction, its login."""

from __future__ import annotations

import math
import struct

import pytest
from cdcworker.connectors.query_source import postgres as databases
from cdcworker.connectors.query_source import source as source_module
from cdcworker.schemas.placeholders import unscaled

from tests.contract.query_source.databases import *  # noqa: F403 - what every database has to do
from tests.contract.query_source.databases import DIFF, TIMES, code_of, ids, name_of, opened, read_all, values
from tests.integration.connectors.query_source.servers import PostgresOutside

pytestmark = pytest.mark.postgres
TIME = "io.debezium.time."
DATA = "io.debezium.data."
DAY_US = 86_400_000_000


@pytest.fixture(scope="module")
def database(postgres):
    made = PostgresOutside(postgres)
    yield made
    made.close()


@pytest.fixture
def outside(database):
    database.empty()
    return database


@pytest.mark.parametrize(
    ("declared", "expressions", "expected", "avro"),
    [
        ("smallint", ["-32768"], [-32768], "int"),
        ("bigint", ["9223372036854775807", "null"], [2**63 - 1, None], "long"),
        ("real", ["'0.1'", "'NaN'"], [0.1, math.nan], "float"),
        ("double precision", ["'-Infinity'", "1e308"], [-math.inf, 1e308], "double"),
        ("numeric(20,2)", ["'123456789012345678.25'", "'NaN'"], [unscaled(12345678901234567825), None], "org.apache.kafka.connect.data.Decimal"),
        ("numeric", ["1e30"], [{"scale": 0, "value": unscaled(10**30)}], DATA + "VariableScaleDecimal"),
        ("boolean", ["true", "false"], [True, False], "boolean"),
        ("bytea", [r"'\x00ff'"], [b"\0\xff"], "bytes"),
        ("uuid", ["'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'"], ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"], DATA + "Uuid"),
        ("jsonb", ["'{\"b\": [1, null]}'"], ['{"b": [1, null]}'], DATA + "Json"),
        ("date", ["'1969-12-31'", "'0001-01-01 BC'"], [-1, -719528], TIME + "Date"),
        ("time", ["'24:00:00'", "'04:05:06.789'"], [DAY_US - 1, 14706789000], TIME + "MicroTime"),
        ("timestamp", ["'1970-01-02 00:00:00.000001'"], [DAY_US + 1], TIME + "MicroTimestamp"),
        ("timestamptz", ["'2024-03-31 02:30:00+02'", "'infinity'"], ["2024-03-31T00:30:00.000000Z", "infinity"], TIME + "ZonedTimestamp"),
        ("interval", ["'1 day 00:00:01'"], [DAY_US + 1_000_000], TIME + "MicroDuration"),
        ("int[]", ["'{1,null,3}'"], [[1, None, 3]], "array"),
        ("inet", ["'10.0.0.1'"], ["10.0.0.1"], "string"),
        ("bit(9)", ["b'100000001'"], [b"\x01\x01"], DATA + "Bits"),
        ("point", ["'(1,2)'"], [{"x": 1.0, "y": 2.0, "wkb": struct.pack("<BIdd", 1, 1, 1, 2), "srid": None}], DATA + "geometry.Point"),
    ],
)  # fmt: skip
def test_values_have_the_types_of_the_stream(outside, declared, expressions, expected, avro):
    found, kind = values(outside, declared, *expressions)
    assert [repr(each) for each in found] == [repr(each) for each in expected]
    assert name_of(kind).endswith(avro)


def test_an_enum_may_grow_while_the_task_runs(outside):
    outside.run("create type mood as enum ('sad', 'ok')")
    outside.run("create table moods (id bigint primary key, v mood, changed timestamptz)")
    outside.run("insert into moods values (1, 'ok')")
    source = opened(outside, query="select * from moods")
    _, cursor = read_all(source)
    outside.run("alter type mood add value 'glad'")
    outside.run("insert into moods values (2, 'glad')")
    assert [record.row["v"] for record in source.read(cursor).records] == ["glad"]


def test_a_cursor_may_be_of_any_kind_of_whole_number(outside):
    outside.run("create domain counted as numeric(30)")
    outside.run("create table many (id counted, small smallint)")
    outside.run(f"insert into many values ({10**25}, 1), ({10**25 + 1}, 2)")
    found, cursor = read_all(opened(outside, query="select * from many", **{"query.key": None}))
    assert len(found) == 2
    outside.run(f"insert into many values ({10**25 + 2}, 3)")
    assert len(read_all(opened(outside, query="select * from many", **{"query.key": None}), cursor)[0]) == 1
    outside.run("insert into many values ('NaN', 4)")
    error = code_of(lambda: read_all(opened(outside, query="select * from many", **{"query.key": None}), cursor))
    assert error.code == "plugin.record_refused"


def test_a_time_at_the_end_of_all_times_halts_the_task(outside):
    outside.add(1, "2024-01-01 10:00:00")
    for at in ("'infinity'", "'10000-01-01'"):
        outside.run(f"insert into orders values (2, 'c', {at})")
        assert code_of(lambda: read_all(opened(outside, **TIMES))).code == "plugin.record_refused"
        outside.run("delete from orders where id = 2")


@pytest.mark.parametrize(
    "query",
    [
        "select nextval('numbers') as id",
        "select id, lo_create(0) as v from orders",
        "select id, set_config('transaction_read_only', 'off', false) as v from orders",
        "select id from orders for update",
    ],
)
def test_a_query_that_would_change_something_is_refused(outside, query):
    outside.run("create sequence numbers")
    outside.write(1)
    error = code_of(lambda: read_all(opened(outside, query=query, **{"query.key": None})))
    assert error.code == "query.refused"


def test_the_session_has_the_search_path_of_the_address(outside):
    outside.run('create schema "my shop" create table orders (id bigint)')
    outside.run('insert into "my shop".orders values (77)')
    url = outside.config["connection.url"] + "?currentSchema=my%20shop"
    assert ids(read_all(opened(outside, **{"connection.url": url, "query": "select id from orders"}))[0]) == [77]
    assert ids(read_all(opened(outside, query="select id from orders"))[0]) == []


def test_a_page_is_bounded_by_what_is_in_arrays_and_large_numbers_as_well(outside, monkeypatch):
    monkeypatch.setattr(source_module, "PAGE_BYTES", 2_500)
    outside.run("create table lists (id bigint primary key, v text[], n numeric)")
    outside.run(
        "insert into lists select n, array[repeat('x', 600)], ('1' || repeat('0', 1000))::numeric from generate_series(1, 7) n"
    )
    page = opened(outside, query="select * from lists").read(None)
    assert (len(page.records), page.more) == (3, True)


def test_what_a_look_sees_is_of_one_moment(outside):
    outside.write(3)
    source = opened(outside, **DIFF)
    with source._session() as session:
        assert not session.has_unplaced("id")
        outside.write(1)
        assert len(list(session.rows(10))) == 3


@pytest.mark.parametrize("password", ["wrong-s3cret", ""])
def test_a_wrong_login_is_told_without_the_password(outside, password):
    error = code_of(lambda: opened(outside, **{"connection.password": password}))
    assert (error.code, error.kind) == ("query.login_refused", "config")
    assert "s3cret" not in f"{error} {error.where} {error.__context__!r}"
    (finding,) = _check(outside, **{"connection.password": password})
    assert (finding.severity, finding.code) == ("error", "query.login_refused")


def test_the_live_check_names_what_is_wrong(outside):
    assert _check(outside) == []
    (finding,) = _check(outside, query="select * from nowhere_at_all")
    assert (finding.key, finding.code) == ("query", "query.refused")
    outside.stop()
    try:
        (finding,) = _check(outside)
        assert finding.severity == "warning"
    finally:
        outside.start()


def _check(outside, **more):
    from cdcworker.connectors.query_source.connector import QuerySource

    config = {"connector.class": "query", "topic.prefix": "p", **outside.config, **more}
    return list(QuerySource(config).check())


def test_a_database_or_a_right_that_is_missing_is_told(outside):
    url = outside.config["connection.url"].rpartition("/")[0] + "/not_there"
    assert code_of(lambda: opened(outside, **{"connection.url": url})).code == "plugin.misconfigured"
    outside.run("create role reader login password 'r3ader-s3cret'")
    try:
        login = {"connection.user": "reader", "connection.password": "r3ader-s3cret"}
        error = code_of(lambda: opened(outside, **login))
        assert (error.code, "42501" in error.message) == ("query.refused", True)
    finally:
        outside.run("drop role reader")


def test_tls_that_the_server_does_not_have_is_not_done_without(outside):
    url = outside.config["connection.url"] + "?sslmode=require"
    assert code_of(lambda: opened(outside, **{"connection.url": url})).kind in ("transient", "config")


def test_a_query_that_is_too_slow_is_told_in_whatever_language_the_server_says_it(outside):
    outside.write(1)
    outside.run(
        "create function patient() returns int language plpgsql as $$ begin perform pg_sleep(30); exception when query_canceled then"
        " raise exception 'storniere Anfrage wegen Zeitüberschreitung der Anfrage' using errcode = 'query_canceled'; end $$"
    )
    source = opened(outside, query="select id, patient() as v from orders", **{"query.timeout.ms": "300"})
    assert code_of(lambda: source.read(None)).code == "query.too_slow"


def test_types_that_cannot_be_read_in_time_are_told_as_the_query_is(outside):
    outside.run("begin")
    outside.run("lock table pg_enum in access exclusive mode")
    try:
        assert code_of(lambda: opened(outside, **{"query.timeout.ms": "300"})).code == "query.too_slow"
    finally:
        outside.run("rollback")


def test_a_server_that_stands_still_is_given_up_and_tried_again(outside, monkeypatch):
    outside.write(1)
    source = opened(outside, query=f"select id, customer from orders where ({outside.slow}) > 0")
    # Long before the server ends the query by itself.
    monkeypatch.setattr(databases, "SLACK_S", 0.3 - 30.0)
    error = code_of(lambda: source.read(None))
    assert (error.code, "does not answer" in error.message) == ("plugin.unavailable", True)
