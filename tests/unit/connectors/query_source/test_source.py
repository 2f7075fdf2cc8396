"""The source of a query against a SQLite file: late rows, comparison, types, NULL, queries that are refused."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from cdcworker.connectors.api.kit import SourcePlace
from cdcworker.connectors.kit.rows import TableShape
from cdcworker.connectors.query_source import source as source_module
from cdcworker.connectors.query_source.connector import QuerySource
from cdcworker.connectors.query_source.source import QueryRows
from cdcworker.schemas.errors import CdcError

from tests.unit.connectors.query_source.query_file import QueryFile

SECRET = "s3cret-value"
BROKEN_OFF = """
import os, sqlite3, sys
session = sqlite3.connect(sys.argv[1], isolation_level=None)
session.execute("pragma cache_size = 1")
session.execute("begin")
session.executemany("insert into orders (id, customer) values (?, ?)", [(n, "x" * 2_000) for n in range(100, 200)])
os._exit(0)
"""
"""Writes into the file, and ends before it commits."""
TIMES = {"mode": "timestamp", "timestamp.column.name": "changed", "incrementing.column.name": None}
DIFF = {"mode": "diff", "incrementing.column.name": None}


@pytest.fixture
def file(tmp_path):
    return QueryFile(tmp_path)


def opened(file, roots=None, **more):
    config = {"connector.class": "query", "topic.prefix": "p", **file.config, **more}
    parsed = QuerySource.config_def.parse({name: value for name, value in config.items() if value is not None})
    source = QueryRows(SourcePlace(parsed, roots or (str(file.path.parent),)))
    source.tables()
    return source


def read_all(source, cursor=None):
    """Returns operations and keys up to where there is no more, and the cursor."""
    out = []
    while True:
        page = source.read(cursor)
        cursor = json.loads(json.dumps(page.cursor))
        out += [(each.op, each.row["id"]) for each in page.records]
        if not page.more:
            return out, cursor


def ids(found):
    return [key for _, key in found]


def problems(file, **more):
    config = {"connector.class": "query", "topic.prefix": "p", **file.config, **more}
    found = QuerySource.config_def.validate({name: value for name, value in config.items() if value is not None})
    return {each.name: each.errors[0] for each in found if each.errors}


def add(file, number, at, customer="c"):
    file.run("insert into orders (id, customer, changed) values (?, ?, ?)", number, customer, at)


def test_rows_behind_a_number_come_once(file):
    file.write(5)
    found, cursor = read_all(opened(file))
    assert found == [("u", number) for number in range(1, 6)]
    file.write(2)
    found, cursor = read_all(opened(file), cursor)
    assert ids(found) == [6, 7]
    assert read_all(opened(file), cursor) == ([], cursor)


def test_pages_follow_each_other_where_many_rows_are_read(file, monkeypatch):
    monkeypatch.setattr(source_module, "PAGE_ROWS", 4)
    file.write(11)
    found, cursor = read_all(opened(file))
    assert ids(found) == list(range(1, 12))
    assert read_all(opened(file), cursor)[0] == []


def test_a_late_number_is_found_once_within_the_look_back(file):
    for number in (1, 2, 9):
        add(file, number, None)
    source = opened(file, **{"query.lookback": "5"})
    _, cursor = read_all(source)
    add(file, 3, None)
    add(file, 5, None)
    found, cursor = read_all(source, cursor)
    assert ids(found) == [5], "3 lies below the look-back"
    assert read_all(source, cursor)[0] == []


def test_a_late_time_is_found_once_and_rows_of_one_time_are_told_apart(file):
    source = opened(file, **TIMES, **{"query.lookback": "60000"})
    for number in (1, 2):
        add(file, number, "2024-01-01 10:00:30")
    _, cursor = read_all(source)
    add(file, 3, "2024-01-01 10:00:30")
    add(file, 4, "2024-01-01 09:59:31.5")
    add(file, 5, "2024-01-01 09:59:00")
    found, cursor = read_all(source, cursor)
    assert ids(found) == [4, 3], "5 lies below the look-back"
    file.run("update orders set customer = 'other' where id = 4")
    found, cursor = read_all(source, cursor)
    assert ids(found) == [4], "its time is the same, and another column is not"
    add(file, 6, "2024-01-01 12:00:00")
    found, cursor = read_all(source, cursor)
    assert (ids(found), read_all(source, cursor)[0]) == ([6], [])


def test_a_late_time_is_found_whatever_the_number_of_its_digits(file):
    source = opened(file, **TIMES, **{"query.lookback": "1000"})
    add(file, 1, "2024-01-01 10:00:30.5")
    _, cursor = read_all(source)
    add(file, 2, "2024-01-01 10:00:29.5")
    assert ids(read_all(source, cursor)[0]) == [2]


@pytest.mark.parametrize(("first", "second"), [("30.000", "30"), ("30.50", "30.5"), ("30", "30.000")])
def test_a_row_of_the_highest_time_is_found_whatever_the_number_of_its_digits(file, first, second):
    source = opened(file, **TIMES)
    add(file, 1, f"2024-01-01 10:00:{first}")
    _, cursor = read_all(source)
    add(file, 2, f"2024-01-01 10:00:{second}")
    found, cursor = read_all(source, cursor)
    assert (ids(found), read_all(source, cursor)[0]) == ([2], [])


@pytest.mark.parametrize("value", [1_800_000_000, 0.5])
def test_a_number_in_place_of_a_time_is_told_also_behind_the_highest_one(file, value):
    add(file, 1, "2024-01-01 10:00:00")
    source = opened(file, **TIMES)
    _, cursor = read_all(source)
    add(file, 2, value)
    with pytest.raises(CdcError) as caught:
        read_all(source, cursor)
    assert caught.value.code == "query.cursor_null"


def test_what_a_look_sees_is_of_one_moment(file):
    file.run("pragma journal_mode = wal")
    file.write(3)
    source = opened(file)
    with source._session() as session:
        assert not session.has_unplaced("id")
        file.run("alter table orders rename column customer to former")
        file.run("alter table orders add column customer text")
        file.run("alter table orders drop column changed")
        file.write(1)
        assert [row.values[1] for row in session.rows(10)] == ["customer 0", "customer 1", "customer 2"]


def test_a_file_whose_writer_ended_in_the_middle_is_tried_again(file):
    file.write(1)
    source = opened(file)
    subprocess.run([sys.executable, "-c", BROKEN_OFF, str(file.path)], check=True)
    with pytest.raises(CdcError) as caught:
        source.read(None)
    assert (caught.value.code, caught.value.kind) == ("plugin.unavailable", "transient")
    file.write(1)
    assert ids(read_all(source)[0]) == [1, 2]


def test_rows_that_are_equal_in_all_columns_come_each(file):
    for number in range(4):
        add(file, number, "2024-01-01 10:00:00", "same")
    query = {"query": "select customer as id, changed from orders", "query.key": None}
    source = opened(file, **TIMES, **query)
    found, cursor = read_all(source)
    add(file, 4, "2024-01-01 10:00:00", "same")
    assert (len(found), len(read_all(source, cursor)[0])) == (4, 1)


def test_more_rows_of_one_time_than_a_position_has_room_for_are_an_error(file, monkeypatch):
    monkeypatch.setattr("cdcworker.connectors.query_source.window.WINDOW_ROWS_MAX", 3)
    for number in range(5):
        add(file, number, "2024-01-01 10:00:00")
    with pytest.raises(CdcError) as caught:
        read_all(opened(file, **TIMES))
    assert caught.value.code == "query.window_too_large"


def test_all_rows_are_compared_with_what_they_were(file):
    file.write(3)
    source = opened(file, **DIFF)
    found, cursor = read_all(source)
    assert found == [("r", 1), ("r", 2), ("r", 3)]
    file.run("delete from orders where id = 2")
    file.run("update orders set customer = 'it''s 日本 \U0001f600' where id = 3")
    add(file, 7, None)
    found, cursor = read_all(opened(file, **DIFF), cursor)
    assert sorted(found) == [("c", 7), ("d", 2), ("u", 3)]
    assert read_all(source, cursor) == ([], cursor)


def test_a_result_that_is_too_long_or_has_a_key_twice_is_refused(file, monkeypatch):
    monkeypatch.setattr(source_module, "LIST_ROWS_MAX", 3)
    file.write(4)
    with pytest.raises(CdcError) as caught:
        read_all(opened(file, **DIFF))
    assert caught.value.code == "query.list_too_long"
    file.run("delete from orders where id > 2")
    with pytest.raises(CdcError, match="two rows of the result have one key"):
        read_all(opened(file, **DIFF, query="select * from orders union all select * from orders where id = 1"))


def test_a_position_of_a_key_of_other_columns_is_told(file):
    file.write(1)
    _, cursor = read_all(opened(file, **DIFF))
    with pytest.raises(CdcError) as caught:
        opened(file, **DIFF, **{"query.key": "id,customer"}).read(cursor)
    assert (caught.value.code, caught.value.where["key"]) == ("plugin.misconfigured", "query.key")


@pytest.mark.parametrize(
    ("declared", "value", "expected"),
    [
        ("bigint", 2**63 - 1, 2**63 - 1), ("decimal(20,2)", "12345678901234567890.25", "1.2345678901234567e+19"), ("text", "12.50", "12.50"),
        ("double", 0.1, 0.1), ("blob", b"\0\xff", b"\0\xff"), ("boolean", 1, True), ("text", None, None), ("numeric", 7, "7"),
    ],
)  # fmt: skip
def test_values_of_each_type(file, declared, value, expected):
    file.run(f'create table kinds (id integer primary key, "a ""b" {declared})')
    file.run("insert into kinds values (1, ?)", value)
    source = opened(file, query="select * from kinds")
    (table,), (record,) = source.tables(), source.read(None).records
    assert record.row['a "b'] == expected
    TableShape("query", table).row(record.row)


def test_a_value_that_its_column_cannot_have_is_refused_without_the_value(file):
    file.run("create table kinds (id integer primary key, n integer)")
    file.run("insert into kinds values (1, ?)", SECRET)
    source = opened(file, query="select * from kinds")
    with pytest.raises(CdcError) as caught:
        TableShape("query", source.tables()[0]).row(source.read(None).records[0].row)
    assert SECRET not in str(caught.value)
    assert caught.value.where["field"] == "n"


@pytest.mark.parametrize("value", [None, SECRET, "2024-01-01", "2024-01-01 10:00:00Z", "2024-13-01 10:00:00", 5])
def test_a_value_without_a_place_among_times_is_refused(file, value):
    add(file, 1, "2024-01-01 10:00:00")
    add(file, 2, value)
    with pytest.raises(CdcError) as caught:
        read_all(opened(file, **TIMES))
    assert caught.value.code == ("query.cursor_null" if value in (None, 5) else "plugin.record_refused")
    assert str(value) not in caught.value.message or value in (None, 5)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"incrementing.column.name": "customer"}, "plugin.misconfigured"), ({"incrementing.column.name": "gone"}, "plugin.misconfigured"),
        ({"query.key": "gone"}, "plugin.misconfigured"), ({"query.key": "extra"}, "plugin.misconfigured"),
        ({"query": "select * from gone"}, "query.refused"), ({"query": "select 1 as id; delete from orders"}, "query.refused"),
        ({"query": "with x as (select 1) delete from orders"}, "query.refused"), ({"query": "select id from orders where"}, "query.refused"),
        ({"roots": ("/nowhere",)}, "file.path_not_allowed"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(file, more, code):
    file.write(1)
    with pytest.raises(CdcError) as caught:
        opened(file, **more)
    assert caught.value.code == code
    assert "gone" not in str(more.get("query")) or "no such table: " in caught.value.message
    assert read_all(opened(file))[0] == [("u", 1)], "nothing has changed"


def test_a_query_without_an_end_is_ended(file):
    endless = "with recursive n(id) as (select 1 union all select id + 1 from n) select count(*) from n"
    file.write(1)
    source = opened(file, query=f"select id from orders where ({endless}) > 0", **{"query.timeout.ms": "100"})
    with pytest.raises(CdcError) as caught:
        source.read(None)
    assert caught.value.code == "query.too_slow"


def test_a_link_and_a_second_name_are_refused(file, tmp_path):
    (tmp_path / "link.db").symlink_to(file.path)
    with pytest.raises(CdcError, match="regular file"):
        opened(file, **{"connection.url": f"jdbc:sqlite:{tmp_path}/link.db"})
    (tmp_path / "second.db").hardlink_to(file.path)
    with pytest.raises(CdcError, match="regular file"):
        opened(file)


def test_positions_of_others_are_refused(file):
    file.write(1)
    for cursor in ({"high": True}, {"high": 1, "seen": "x"}, {"high": [1]}, {"high": "2024-01-01 10:00:00"}):
        with pytest.raises(CdcError):
            opened(file).read(cursor)
    with pytest.raises(CdcError):
        opened(file, **DIFF).read({"rows": [1]})


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("connection.url", "jdbc:oracle:thin:@x", "jdbc:sqlite:/PATH"), ("query", "delete from orders", "one SELECT"), ("mode", "bulk", "diff"),
        ("mode", "timestamp+incrementing", "not needed"), ("mode", "diff", ""), ("table.whitelist", "a", "query.table"),
        ("timestamp.delay.interval.ms", "5", "query.lookback"), ("incrementing.column.name", None, "is needed"),
    ],
)  # fmt: skip
def test_configs_are_judged(file, key, value, text):
    assert problems(file) == {}
    found = problems(file, **{key: value})
    assert any(text in problem for problem in found.values())
    assert found.keys() <= {key, "incrementing.column.name"}
