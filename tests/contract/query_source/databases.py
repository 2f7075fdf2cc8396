"""What a database has to do for the source of a query: rows by a number, by a time and by comparison, once each whatever comes late, within
bounds, and errors that say what to do without a value.

The module of a database runs these tests over its fixture `outside`, an `Outside` of the module beside this one.
"""

from __future__ import annotations

import json

import pytest
from cdcworker.connectors.api.kit import SourcePlace
from cdcworker.connectors.kit.rows import TableShape
from cdcworker.connectors.query_source import source as source_module
from cdcworker.connectors.query_source.connector import QuerySource
from cdcworker.connectors.query_source.source import QueryRows
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.conformance.findings import findings
from cdcworker.worker.conformance.source_checks import Limits, SourceChecks

TIMES = {"mode": "timestamp", "timestamp.column.name": "changed", "incrementing.column.name": None}
DIFF = {"mode": "diff", "incrementing.column.name": None}
STRANGE = (
    "it''s %s %% {} ${x} \\\\ \"`", "日本 \U0001f600 \u202e\ufeff", "line\r\nline", "x" * 200_000,
)  # fmt: skip
"""Texts as they stand between quotes in SQL; a backslash is doubled for those databases that take it for an escape."""


def opened(outside, **more):
    config = {"connector.class": "query", "topic.prefix": "p", **outside.config, **more}
    parsed = QuerySource.config_def.parse({name: value for name, value in config.items() if value is not None})
    source = QueryRows(SourcePlace(parsed, outside.roots))
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


def values(outside, declared, *expressions):
    """Returns what the column `v` of a type holds in records, which are written for it."""
    outside.run(f"create table kinds (id bigint primary key, v {declared})")
    for number, expression in enumerate(expressions):
        outside.run(f"insert into kinds values ({number}, {expression})")
    source = opened(outside, query="select * from kinds")
    (table,) = source.tables()
    shape = TableShape("query", table)
    return [shape.row(record.row)[1] for record in source.read(None).records], shape.table.columns[1].type


def name_of(avro):
    """The type's name in Kafka Connect, or in Avro."""
    return avro.get("connect.name", avro["type"]) if isinstance(avro, dict) else avro


def code_of(call):
    with pytest.raises(CdcError) as caught:
        call()
    return caught.value


# What is read


def test_rows_behind_a_number_come_once_and_late_ones_within_the_look_back(outside):
    for number in (1, 2, 9):
        outside.add(number)
    source = opened(outside, **{"query.lookback": "5"})
    found, cursor = read_all(source)
    assert found == [("u", 1), ("u", 2), ("u", 9)]
    for number in (3, 5, 10):
        outside.add(number)
    found, cursor = read_all(opened(outside, **{"query.lookback": "5"}), cursor)
    assert ids(found) == [5, 10], "3 lies below the look-back"
    assert read_all(source, cursor) == ([], cursor)


def test_a_late_time_is_found_once_and_rows_of_one_time_are_told_apart(outside):
    source = opened(outside, **TIMES, **{"query.lookback": "60000"})
    outside.add(1, "2024-03-31 02:30:30")
    outside.add(2, "2024-03-31 02:30:30")
    _, cursor = read_all(source)
    outside.add(3, "2024-03-31 02:30:30")
    outside.add(4, "2024-03-31 02:29:31")
    outside.add(5, "2024-03-31 02:29:00")
    found, cursor = read_all(source, cursor)
    assert ids(found) == [4, 3], "5 lies below the look-back"
    outside.run("update orders set customer = 'other' where id = 4")
    found, cursor = read_all(opened(outside, **TIMES, **{"query.lookback": "60000"}), cursor)
    assert ids(found) == [4], "its time is the same, and another column is not"
    outside.add(6, "2024-03-31 12:00:00.000001")
    outside.add(7, "2024-03-31 12:00:00.000002")
    found, cursor = read_all(source, cursor)
    assert (ids(found), read_all(source, cursor)[0]) == ([6, 7], [])


def test_without_a_look_back_no_row_of_the_highest_time_is_lost(outside):
    source = opened(outside, **TIMES)
    outside.add(1, "2024-01-01 10:00:30.5")
    _, cursor = read_all(source)
    outside.add(2, "2024-01-01 10:00:30.5")
    outside.add(3, "2024-01-01 10:00:30.499")
    found, cursor = read_all(source, cursor)
    assert (ids(found), read_all(source, cursor)[0]) == ([2], [])


def test_pages_are_bounded_by_rows_and_a_restart_at_each_goes_on(outside, monkeypatch):
    monkeypatch.setattr(source_module, "PAGE_ROWS", 4)
    outside.run("insert into orders (id, customer) values " + ", ".join(f"({n}, 'c')" for n in range(11)))
    cursor, found, pages = None, [], 0
    more = True
    while more:
        page = opened(outside).read(cursor)
        cursor, more, pages = json.loads(json.dumps(page.cursor)), page.more, pages + 1
        found += [record.row["id"] for record in page.records]
    assert (found, pages) == (list(range(11)), 4)


def test_pages_are_bounded_by_bytes_also_below_the_highest_value(outside, monkeypatch):
    monkeypatch.setattr(source_module, "PAGE_BYTES", 2_500)
    outside.add(1000)
    late = {"query.lookback": "1000"}
    _, cursor = read_all(opened(outside, **late))
    for number in range(1, 8):
        outside.add(number, customer="x" * 1_000)
    pages, found = [], []
    while True:
        page = opened(outside, **late).read(cursor)
        cursor = json.loads(json.dumps(page.cursor))
        pages.append(len(page.records))
        found += [record.row["id"] for record in page.records]
        if not page.more:
            break
    assert (found, pages) == (list(range(1, 8)), [3, 3, 1])


def test_all_rows_are_compared_with_what_they_were(outside):
    outside.write(3)
    found, cursor = read_all(opened(outside, **DIFF))
    assert sorted(found) == [("r", 1), ("r", 2), ("r", 3)]
    outside.run("delete from orders where id = 2")
    outside.run("update orders set customer = 'other' where id = 3")
    outside.add(7)
    found, cursor = read_all(opened(outside, **DIFF), cursor)
    assert sorted(found) == [("c", 7), ("d", 2), ("u", 3)]
    assert read_all(opened(outside, **DIFF), cursor) == ([], cursor)


def test_texts_of_any_kind_arrive_as_they_are(outside):
    for number, text in enumerate(STRANGE):
        outside.add(number, customer=text)
    source = opened(outside)
    found = [record.row["customer"] for record in source.read(None).records]
    plain = [text.replace("''", "'") for text in STRANGE]
    assert [text.replace("\\\\", "\\") for text in found] == [text.replace("\\\\", "\\") for text in plain]


def test_a_query_may_have_percent_signs_brackets_and_a_comment_at_its_end(outside):
    outside.add(1, customer="50% off")
    outside.add(2, customer="none")
    query = "with few as (select id, customer from orders where customer like '%!%%' escape '!')\nselect * from few -- of %s ;"
    assert ids(read_all(opened(outside, query=query))[0]) == [1]
    assert ids(read_all(opened(outside, query="select * from orders;\n"))[0]) == [1, 2]


def test_the_source_passes_the_checks_of_the_conformance_kit(outside):
    config = {"connector.class": "query", "topic.prefix": "p", "poll.interval.ms": "50", **outside.config}
    checks = SourceChecks(QuerySource, outside, config, file_roots=outside.roots, limits=Limits(10.0, 10.0, 0.2))
    # That pages are bounded is looked at with fewer rows above.
    left_out = (
        ("a page is bounded",) if outside.has_nul else ("a page is bounded", "texts of any kind arrive as they are")
    )
    found = findings([each for each in checks.all() if each.name not in left_out])
    assert [(each.name, each.problem) for each in found if each.problem] == []


# What is refused


def test_a_time_without_a_place_halts_the_task(outside):
    outside.add(1, "2024-01-01 10:00:00")
    for number, at in enumerate(outside.unplaced, 2):
        outside.add(number, at)
        error = code_of(lambda: read_all(opened(outside, **TIMES)))
        assert error.code == "query.cursor_null"
        outside.run(f"delete from orders where id = {number}")
    assert ids(read_all(opened(outside, **TIMES))[0]) == [1]


@pytest.mark.parametrize(
    ("more", "code", "text"),
    [
        ({"query": "select * from nowhere_at_all"}, "query.refused", "nowhere_at_all"),
        ({"query": "select nothing_such from orders"}, "query.refused", "nothing_such"),
        ({"query": "select id from orders where"}, "query.refused", ""),
        ({"query": "select 1 as id; delete from orders"}, "query.refused", ""),
        ({"query": "select 1 as id) as x; delete from orders; select * from (select 1 as id"}, "query.refused", ""),
        ({"query": "with x as (select 1) delete from orders"}, "query.refused", ""),
        ({"incrementing.column.name": "customer"}, "plugin.misconfigured", "whole numbers"),
        ({"incrementing.column.name": "gone"}, "plugin.misconfigured", "no column"),
        ({"query.key": "gone"}, "plugin.misconfigured", "does not have"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_and_changes_nothing(outside, more, code, text):
    outside.write(1)
    error = code_of(lambda: opened(outside, **more))
    assert (error.code, text in error.message) == (code, True)
    assert read_all(opened(outside))[0] == [("u", 1)]


def test_a_query_without_an_end_is_ended(outside):
    outside.write(1)
    query = f"select id, customer from orders where ({outside.slow}) > 0"
    source = opened(outside, query=query, **{"query.timeout.ms": "300"})
    assert code_of(lambda: source.read(None)).code == "query.too_slow"


def test_columns_that_change_between_two_polls_are_told(outside):
    outside.write(1)
    source = opened(outside)
    _, cursor = read_all(source)
    outside.run("alter table orders add column further int")
    assert code_of(lambda: source.read(cursor)).message.startswith("the query has other columns")
    outside.run("alter table orders drop column further")
    assert read_all(source, cursor)[0] == []
    if outside.other_type:
        outside.run("update orders set customer = 'short'")
        outside.run(outside.other_type)
        assert code_of(lambda: source.read(cursor)).message.startswith("the query has other columns")
    outside.run("alter table orders drop column customer")
    named = code_of(lambda: opened(outside, query="select id, customer from orders"))
    assert (named.code, "customer" in named.message) == ("query.refused", True)


def test_a_database_that_is_away_is_tried_again(outside):
    outside.write(1)
    source = opened(outside)
    _, cursor = read_all(source)
    outside.write(1)
    outside.stop()
    try:
        error = code_of(lambda: source.read(cursor))
        assert (error.code, error.kind) == ("plugin.unavailable", "transient")
    finally:
        outside.start()
    assert read_all(source, cursor)[0] == [("u", 2)]
