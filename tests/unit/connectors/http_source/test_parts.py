"""Pointers, fields, pages and marks of the source of a JSON API."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from cdcworker.connectors.api.kit import RecordRefused
from cdcworker.connectors.http_source.changed_rows import EDGE_MAX, Marks, behind, changes_of_list, marks_of, rank
from cdcworker.connectors.http_source.connector import HttpSource
from cdcworker.connectors.http_source.items import parse_fields, proposed, table_of
from cdcworker.connectors.http_source.pages import ElsewhereError, Paging, next_link, with_parameters
from cdcworker.connectors.http_source.pointers import parse_pointer, value_at

URL = "https://api.example/v1/items?kind=all"
BASE = {"connector.class": "http", "topic.prefix": "p", "http.url": URL, "http.table": "orders", "http.key": "id"}


def wrong(config):
    return {value.name for value in HttpSource.config_def.validate({**BASE, **config}) if value.errors}


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"http.url": "nowhere"}, "http.url"),
        ({"http.url": "https://u:p@a/"}, "http.url"),
        ({"http.url": "https://a/#x"}, "http.url"),
        ({"http.url": "https://a:0/"}, "http.url"),
        ({"http.table": "a.b"}, "http.table"),
        ({"http.items.pointer": "data"}, "http.items.pointer"),
        ({"http.key": ""}, "http.key"),
        ({"http.key": "item"}, "http.key"),
        ({"http.key": "a b"}, "http.key"),
        ({"http.fields": "id"}, "http.fields"),
        ({"http.fields": "id:bytes"}, "http.fields"),
        ({"http.fields": "id:int64,id:string"}, "http.fields"),
        ({"http.fields": "id:int64:/~2"}, "http.fields"),
        ({"http.fields": "other:int64"}, "http.key"),
        ({"http.cursor.parameter": "since"}, "http.cursor.parameter"),
        ({"http.cursor.field": "at", "http.cursor.initial": "0"}, "http.cursor.initial"),
        ({"http.pagination": "scroll"}, "http.pagination"),
        ({"http.pagination": "next"}, "http.next.pointer"),
        ({"http.pagination": "link", "http.next.pointer": "/next"}, "http.next.pointer"),
        ({"http.pagination": "link", "http.page.parameter": "p"}, "http.page.parameter"),
        ({"http.pagination": "offset", "http.page.first": "1"}, "http.page.first"),
        ({"http.page.size": "10"}, "http.page.size"),
        ({"http.page.size.parameter": "n"}, "http.page.size.parameter"),
        (
            {"http.pagination": "page", "http.cursor.field": "at", "http.cursor.parameter": "page"},
            "http.page.parameter",
        ),
        ({"http.authorization.type": "bearer"}, "http.authorization.token"),
        ({"http.headers.additional": "Authorization: x"}, "http.headers.additional"),
        ({"http.url": "http://a/", "http.ssl.truststore.certificates": "c"}, "http.ssl.truststore.certificates"),
        ({"retry.on.status.codes": "4xx"}, "retry.on.status.codes"),
    ],
)
def test_what_is_refused_by_its_key(config, key):
    assert key in wrong(config)


def test_what_is_taken():
    assert wrong({}) == set()
    assert wrong({"http.key": "", "http.cursor.field": "/meta/at"}) == set()
    paged = {"http.pagination": "offset", "http.page.size": "10", "http.page.size.parameter": "limit"}
    assert wrong({**paged, "http.fields": "id:int64,name:string:/who/name,all:json:"}) == set()


def test_pointers():
    document = {"a": [{"b/c": 1, "~": 2}], "": 3}
    assert [value_at(document, parse_pointer(text)) for text in ("/a/0/b~1c", "/a/0/~0", "/", "/a/1", "/a/x", "/a/0/b/c", "a")] == [
        1, 2, 3, None, None, None, document["a"],
    ]  # fmt: skip
    assert value_at(document, parse_pointer("")) is document


def test_values_of_fields():
    config = {"http.table": "t", "http.key": ["id"], "http.fields": ["id:string", "at:timestamp", "n:float64:/a/n"]}
    table = table_of(config)
    row = table.row(table.raw({"id": 7, "at": "2024-01-01T00:00:00Z", "a": {"n": 1}, "more": 1}))
    assert row == {"id": "7", "at": datetime(2024, 1, 1, tzinfo=UTC), "n": 1}
    assert table.row(table.raw({"id": True, "at": "yesterday"})) == {"id": "true", "at": "yesterday", "n": None}
    plain = table_of({"http.table": "t", "http.key": ["id"], "http.fields": None})
    assert plain.row(plain.raw({"id": 7, "x": [1]})) == {"id": "7", "item": {"id": 7, "x": [1]}}


def test_fields_that_samples_propose():
    items = [
        {"i": 1, "f": 1, "s": "a", "t": "2024-01-01T00:00:00Z", "m": "2024-01-01T00:00:00Z", "b": True, "o": {}, "n": None, "x": 1, "a b": 1},
        {"i": None, "f": 1.5, "m": "later", "x": "1", "big": 1 << 63},
        7,
    ]  # fmt: skip
    assert proposed(items) == [
        "i:int64", "f:float64", "s:string", "t:timestamp", "m:string", "b:boolean", "o:json", "n:json", "x:json", "big:json",
    ]  # fmt: skip
    assert parse_fields(proposed(items))


def test_targets_of_pages():
    assert Paging("none", URL).begin({"since": "a b"}) == "/v1/items?kind=all&since=a+b"
    assert Paging("none", "https://api.example").begin({}) == "/"
    counted = Paging("page", URL, "page", 1, 2, "limit")
    first = counted.begin({})
    assert first == "/v1/items?kind=all&page=1&limit=2"
    assert counted.following(first, {}, None, 2) == "/v1/items?kind=all&limit=2&page=2"
    assert counted.following(first, {}, None, 1) is None
    offset = Paging("offset", URL, "offset")
    assert offset.following(offset.begin({}), {}, None, 3) == "/v1/items?kind=all&offset=3"
    assert offset.following(offset.begin({}), {}, None, 0) is None
    token = Paging("cursor", URL, "after", next=("next",))
    assert token.following("/v1/items?after=a", {}, {"next": "b&c"}, 0) == "/v1/items?after=b%26c"
    assert [token.following("/", {}, {"next": each}, 9) for each in (None, "", False)] == [None] * 3
    assert with_parameters("/?a=1&b=&a=2", {"a": "3"}) == "/?b=&a=3"


@pytest.mark.parametrize(
    ("found", "target"),
    [
        ("?page=2", "/v1/items?page=2"), ("/other", "/other"), ("https://api.example:443/x", "/x"), ("", None), (None, None),
    ],
)  # fmt: skip
def test_addresses_of_pages(found, target):
    assert Paging("next", URL, next=("n",)).following("/v1/items?page=1", {}, {"n": found}, 1) == target


@pytest.mark.parametrize(
    "found",
    ["https://evil.example/x", "//evil.example/", "http://api.example/x", "https://api.example:8443/", "https://u@api.example/", "file:///x"],
)  # fmt: skip
def test_the_next_page_is_on_the_same_server(found):
    with pytest.raises(ElsewhereError):
        Paging("next", URL, next=("n",)).following("/v1/items", {}, {"n": found}, 1)


@pytest.mark.parametrize("found", [7, "/a b", "/" + "x" * 9_000, "/v1/items", "https://[x/"])
def test_what_names_no_page(found):
    with pytest.raises(ValueError, match=r"page|IPv6"):
        Paging("next", URL, next=("n",)).following("/v1/items", {}, {"n": found}, 1)


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ('<a>; rel="next"', "a"), ("<a>;rel=prev, <b>; title=\"x, y\"; REL=Next", "b"), ('<a>; rel="last next"', "a"), ("<a>", ""), ("", ""),
        ('<a>; rev="next"', ""),
    ],
)  # fmt: skip
def test_the_link_to_the_next_page(header, wanted):
    assert next_link(header) == wanted


def test_what_lies_behind_a_mark_comes_once():
    marks, news = behind(Marks(), [(2, "b"), (1, "a"), (2, "c"), (2, "b")])
    assert (marks.high, news) == (2, [True, True, True, False])
    marks = marks_of(marks.ended().stored()) if all(len(each) == 12 for each in marks.edge) else marks.ended()
    marks, news = behind(marks, [(1, "z"), (2, "b"), (2, "d"), (3, "e")])
    assert (marks.high, marks.edge, news) == (3, frozenset("e"), [False, False, True, True])
    assert marks.again() == Marks(2, frozenset("bc"), 2, frozenset("bc"))
    assert marks_of(Marks(1, frozenset(["x" * 12]), 2, frozenset(["y" * 12])).stored()).seen == frozenset(["x" * 12])


def test_the_edge_is_bounded():
    marks, news = behind(Marks(), [(1, str(n)) for n in range(EDGE_MAX + 5)])
    assert (len(marks.edge), all(news)) == (EDGE_MAX, True)


def test_ranks():
    assert rank("9") < rank("10") < rank(10.5)
    assert rank("2024-01-01T00:00:00Z") < rank("2024-01-01T00:00:00.5Z") < rank("2024-01-01T00:00:00-01:00")
    assert rank("a") < rank("b")
    for value in (None, True, {}, "x" * 2_000, "\ud800", float("inf")):
        with pytest.raises(RecordRefused):
            rank(value)
    with pytest.raises(RecordRefused):
        behind(Marks(), [(1, "a"), ("x", "b")])


def test_a_list_is_compared_with_what_it_was():
    table = table_of({"http.table": "t", "http.key": ["id"], "http.fields": ["id:int64", "n:int64"]})
    known, records = changes_of_list(table, None, [{"id": 1, "n": 1}, {"id": 2, "n": 2}])
    assert [(each.op, each.row) for each in records] == [("r", {"id": 1, "n": 1}), ("r", {"id": 2, "n": 2})]
    known, records = changes_of_list(table, known, [{"id": 1, "n": 1, "unread": 2}, {"id": 3, "n": 3}])
    assert [(each.op, each.row) for each in records] == [("c", {"id": 3, "n": 3}), ("d", {"id": 2})]
    _, records = changes_of_list(table, known, [{"id": 3, "n": 4}, {"id": 1, "n": 1}])
    assert [(each.op, each.row) for each in records] == [("u", {"id": 3, "n": 4})]
